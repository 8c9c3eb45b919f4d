"""What a user configures. These models are the reference: each field's sentence, type and default
become docs/configuration.md and the JSON Schema for editors.

What comes in: plain values with everything expanded (see `loading`). What goes out: frozen settings.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from pydantic import BeforeValidator, ConfigDict, Field, SecretStr, field_validator, model_validator

from ..errors import UsageError
from ..postgres.patterns import TablePattern
from ..settings import (
    SECRET_NAME,
    Duration,
    Path,
    PostgresUrl,
    Settings,
    SinkSettings,
    Size,
    invalid,
    without_credentials,
)
from ..sinks.registry import SINKS

if TYPE_CHECKING:
    from ..log.api import LogSettings

    AnySink = SinkSettings
else:
    AnySink = Annotated[
        Union[tuple(sink.settings for sink in SINKS.values())],  # noqa: UP007
        Field(discriminator="type"),
    ]

_COMMA = re.compile(r',(?=(?:[^"]*"[^"]*")*[^"]*$)')
"""Outside double quotes: an even number of them follows."""
_PIPELINE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_MASTER = re.compile(r"local(\[(\d+|\*)(,\s*\d+)?\])?|local-cluster\[.+\]|yarn|(spark|k8s)://.+")


def _comma_separated(value: Any) -> Any:
    """A list may come from a variable: `tables: ${TABLES}` with `public.*,!public.audit_*`."""
    return [item.strip() for item in _COMMA.split(value)] if isinstance(value, str) else value


class Source(Settings):
    """The Postgres database whose changes are captured."""

    url: PostgresUrl
    """Where the source is: any libpq URL (or `key=value` pairs) of a role that may replicate."""
    name: str = "runnel"
    """Names the subscription: publication `<name>`, slot `<name>_<uuid8>`."""
    tables: Annotated[tuple[str, ...], BeforeValidator(_comma_separated)] = ("*.*",)
    """Tables to capture as `schema.table` patterns with `*`; a leading `!` excludes."""
    messages: bool = True
    """Deliver what `pg_logical_emit_message` writes, as changes of the operation `message` (servers 14 and
    later send it)."""
    streaming: bool = True
    """Receive large transactions before they commit (servers 14 and later); they wait on Runnel's disk."""
    failover: bool = False
    """Make the slot a failover slot (PostgreSQL 17 and later), so that a standby can take over."""
    max_retained: Size | None = None
    """Most WAL the slot may hold back on the source: a warning at 80 %, a stop with a remedy at 100 %."""
    ack: Literal["sink", "log"] = "sink"
    """What the slot is told: what all pipelines have delivered (`sink`), or what the log holds (`log`)."""
    reconcile: Duration = 30
    """How often new and dropped tables are looked for."""

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,53}", value):
            raise invalid(
                f"{value!r} cannot name a replication slot",
                "use lower-case letters, digits and _ (at most 54, no digit first)",
            )
        return value

    @field_validator("tables")
    @classmethod
    def _tables(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for i, pattern in enumerate(value):
            try:
                TablePattern.parse(pattern)
            except UsageError as error:
                raise invalid(error.message, error.hint, at=i) from None
        if not any(not pattern.startswith("!") for pattern in value):
            raise invalid("nothing is included", 'put "*.*" first, then what to leave out')
        return value


class State(Settings):
    """Where Runnel keeps its own records (schema `runnel`): positions, dead letters, owners."""

    url: PostgresUrl | None = None
    """A Postgres that may be written to; default: the source itself."""


class Log(Settings):
    """The change log between capture and the pipelines. A plain string is its path."""

    path: Path = "./.runnel/log"
    """Directory of the log, or a URL; credentials come from the environment of every process."""
    retain: Duration = 0
    """Keep delivered changes this long for `runnel replay`; 0 deletes them when no pipeline needs them."""
    max_bytes: Size = 10 << 30
    """Disk budget: at this size capture pauses until pipelines catch up."""
    chunk_bytes: Annotated[Size, Field(ge=4096)] = 8 << 20
    """About how large a chunk grows before it is closed; larger transactions span several."""
    linger: Duration = 0.05
    """Longest time that a received change waits for more before its chunk is closed."""

    @model_validator(mode="before")
    @classmethod
    def _plain_path(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str) else value

    @field_validator("path")
    @classmethod
    def _no_credentials(cls, value: str) -> str:
        return without_credentials(value)

    @model_validator(mode="after")
    def _budget(self) -> Log:
        if self.max_bytes < self.chunk_bytes:
            raise invalid(
                f"max_bytes ({self.max_bytes}) is less than one chunk ({self.chunk_bytes})",
                "raise log.max_bytes or lower log.chunk_bytes",
            )
        return self

    @property
    def remote(self) -> bool:
        return "://" in self.path

    def settings(self) -> LogSettings:
        from ..log.api import LogSettings

        return LogSettings(
            path=self.path,
            retain_seconds=round(self.retain),
            max_bytes=self.max_bytes,
            chunk_bytes=self.chunk_bytes,
        )


class Batch(Settings):
    """How much a pipeline takes at once."""

    max_bytes: Annotated[Size, Field(ge=4096)] = 256 << 20
    """Most bytes of the log in one micro-batch (a single larger transaction still is one)."""
    linger: Duration = 0
    """Wait this long for more changes before a batch begins: less work, more latency."""


class Pipeline(Settings):
    """From the change log to one sink, with its own position and speed."""

    import_: bool = Field(default=False, alias="import")
    """Load the rows that are already there first. Not available in this version: only `false`."""
    sink: AnySink
    """Where to write: `type` chooses the sink, the other keys are that sink's settings."""
    on_error: Literal["stop", "dead_letter"] = "stop"
    """A change the sink can never take: stop the pipeline, or keep it as a dead letter and go on."""
    max_dead_letters: Annotated[int, Field(ge=1)] = 10_000
    """Most dead letters it may keep; the batch that would bring more stops it, and nothing is passed."""
    tasks: Annotated[int, Field(ge=1)] | None = None
    """Most tasks per micro-batch; default: one per core (on a single machine but capture's), at least 1."""
    batch: Batch = Field(default_factory=Batch)
    """How much is taken at once."""

    @field_validator("import_")
    @classmethod
    def _no_import(cls, value: bool) -> bool:
        if value:
            raise invalid(
                "imports are not available in this version",
                "write import: false (or leave it out): changes from now on are delivered",
            )
        return value


class Spark(Settings):
    """The Spark session; any `spark.*` setting may stand here."""

    model_config = ConfigDict(extra="allow")

    master: str = "local[*]"
    """Where Spark runs: `local[N]`, `local[*]`, or a cluster's URL such as `spark://host:7077`."""

    @field_validator("master")
    @classmethod
    def _master(cls, value: str) -> str:
        if not _MASTER.fullmatch(value):
            raise invalid(
                f"{value!r} is not a Spark master",
                "write local[2], local[*], spark://host:7077, k8s://https://host:443 or yarn",
            )
        return value

    @model_validator(mode="before")
    @classmethod
    def _spark_keys(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        out: dict[str, Any] = {}
        for key, item in value.items():
            if isinstance(item, Mapping | list) or item is None:
                raise invalid(
                    "expected one value", 'write settings flat: "spark.executor.memory": 4g', at=key
                )
            if key != "master" and not key.startswith("spark."):
                raise invalid(
                    "unknown key", f"allowed here: master, spark.*; did you mean 'spark.{key}'?", at=key
                )
            if SECRET_NAME.search(key):
                raise invalid(
                    "a secret here would stand on the command line of Spark's JVM",
                    "give it through the environment, or in a spark-defaults.conf of mode 0600",
                    at=key,
                )
            out[key] = (
                (str(item).lower() if isinstance(item, bool) else str(item)) if key != "master" else item
            )
        return out

    @property
    def settings(self) -> dict[str, str]:
        """The `spark.*` settings, without the master."""
        return dict(self.model_extra or {})


class Config(Settings):
    """Everything in runnel.yaml."""

    source: Source
    """The database whose changes are captured."""
    state: State = Field(default_factory=State)
    """Where Runnel keeps its own records; default: in the source."""
    log: Log = Field(default_factory=Log)
    """The change log between capture and the pipelines; a plain string is its path."""
    pipelines: dict[str, Pipeline] = Field(default_factory=dict)
    """The pipelines by name."""
    spark: Spark = Field(default_factory=Spark)
    """The Spark session; any `spark.*` setting may stand here."""

    @field_validator("pipelines", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        for name in value if isinstance(value, Mapping) else ():
            if not _PIPELINE.fullmatch(name):
                raise invalid(
                    f"{name!r} cannot name a pipeline", "use letters, digits, - and _ (at most 63)", at=name
                )
            if name == "capture":  # events and states are told apart by this name
                raise invalid("a pipeline cannot be called 'capture'", "choose another name", at=name)
        return value

    @model_validator(mode="after")
    def _stage_is_shared(self) -> Config:
        master = self.spark.settings.get("spark.master", self.spark.master)
        for name, pipeline in self.pipelines.items():
            if pipeline.sink.type == "stdout" and self.log.remote and not master.startswith("local"):
                raise invalid(
                    f"pipeline {name!r}: stdout's lines are put together beside the change log, and a"
                    " cluster cannot reach a directory that is beside an object store",
                    "use spark.master: local[*], a log in a directory that all machines share, or files",
                )
        return self

    @property
    def source_url(self) -> str:
        """With its password: for connecting, never for showing."""
        return self.source.url.get_secret_value()

    @property
    def state_url(self) -> str:
        """With its password: for connecting, never for showing."""
        url: SecretStr = self.state.url or self.source.url
        return url.get_secret_value()

    @property
    def stages(self) -> str:
        """Where sinks without a place of their own stage output, a directory per pipeline: beside the
        chunks, or for a log in an object store on the disk of the one machine that Spark then runs on."""
        if self.log.remote:
            return os.path.abspath(f".runnel/stage/{self.source.name}")
        return f"{self.log.path}/_stage"

    def redacted(self) -> dict[str, Any]:
        """For showing: secrets as stars."""
        return self.model_dump(mode="json", by_alias=True)
