"""The base of everything a user configures: the frozen model, and the kinds of values it is made of.

Sits below `config` and `sinks`, so that a sink's settings can be described without loading either.
What comes in is what YAML, an environment variable or a flag can hold (text or numbers); what goes
out is an int of bytes, a float of seconds, an absolute path, a secret that does not print itself.
"""

from __future__ import annotations

import os
import re
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    SecretStr,
    SerializationInfo,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from .redaction import MASK, redact, remember


class Settings(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        validate_by_name=True,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
    )


class SinkSettings(Settings):
    """What every sink's settings have: a `type`, and the place that only one pipeline may write to."""

    type: str
    """Chooses the sink."""

    def place(self) -> str | None:
        """Names what this pipeline writes to; the same name twice is refused, and so are paths and URLs of
        which one is inside the other. None: it may be shared."""
        return None


_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_SIZE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
_TIME_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_size(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    unit = _SIZE_UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError("expected a size such as 64MiB, 1GB or a number of bytes")
    return int(float(match[1]) * unit)


def parse_duration(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf"):
        return float(value)
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    unit = _TIME_UNITS.get(match[2].lower() or "s") if match else None
    if match is None or unit is None:
        raise ValueError("expected a duration such as 200ms, 5s, 10m, 1h, 7d or a number of seconds")
    return float(match[1]) * unit


def show_size(value: int) -> str | int:
    """The shortest exact form: 8MiB rather than 8388608."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        factor = _SIZE_UNITS[unit.lower()]
        if value and value % factor == 0:
            return f"{value // factor}{unit}"
    return value


def absolute(value: Any) -> str:
    """A local path seen from where the command was started; URLs of other file systems stay."""
    text = str(value) if isinstance(value, str | os.PathLike) else ""
    if not text.strip():
        raise ValueError("expected a path or URL")
    if text.startswith("file://"):
        text = text.removeprefix("file://").removeprefix("localhost")
    elif "://" in text:
        if not text.partition("://")[2].strip("/"):
            raise ValueError("expected a path or URL")
        return text.rstrip("/")
    return os.path.abspath(os.path.expanduser(text))


Size = Annotated[
    int,
    BeforeValidator(parse_size),
    WithJsonSchema({"type": ["integer", "string"], "title": "size", "examples": ["64MiB", "1GB", 4096]}),
]
"""Bytes."""

Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    WithJsonSchema({"type": ["number", "string"], "title": "duration", "examples": ["200ms", "5s", "1h"]}),
]
"""Seconds."""

Path = Annotated[str, BeforeValidator(absolute), WithJsonSchema({"type": "string", "title": "path or URL"})]
"""Absolute, or a URL."""


def invalid(message: str, hint: str, *, at: str | int | None = None) -> PydanticCustomError:
    """What a validator raises: both lines reach the user, with the file's line and the field. `at`: the
    key or index inside the validated value that is wrong."""
    # A template would treat braces in the message as placeholders: hand the text over as a value.
    return PydanticCustomError("runnel", "{message}", {"message": message, "hint": hint, "at": at})


SECRET_NAME = re.compile(
    r"(?i)(secret|password|passwd|(secret|access|account)[._]?key|token)"
    r"(?=$|\.(?!(?:provider|binding|file|path|enabled)(?:$|\.)))"
)
"""How a name of something ends that must not be shown, or goes on with whose it is, as Azure's do: not with
where it comes from."""


def without_credentials(url: str) -> str:
    """The place as it is; refused if it holds a secret: it stands in Spark's plans, logs and messages."""
    if "://" not in url:
        return url
    parts = urlsplit(url)
    user = parts.netloc.rpartition("@")[0]
    # abfs://container@account… and hdfs://user@host name no secret
    named = parts.scheme in ("abfs", "abfss", "hdfs", "viewfs") and ":" not in user
    if (user and not named) or any(SECRET_NAME.search(name) for name, _ in parse_qsl(parts.query)):
        for secret in (user, user.partition(":")[2], *(value for _, value in parse_qsl(parts.query))):
            remember(secret)
        raise invalid("no credentials in the path", "give them in the environment of every process")
    return url


REVEAL = {"reveal": True}
"""Serialization context for the one file that must hold secrets (see `config.effective`)."""


def _show_secret(secret: SecretStr, info: SerializationInfo) -> str:
    return secret.get_secret_value() if info.context == REVEAL else MASK


def _show_url(secret: SecretStr, info: SerializationInfo) -> str:
    text = secret.get_secret_value()
    return text if info.context == REVEAL else redact(text)


def _remember(secret: SecretStr) -> SecretStr:
    remember(secret.get_secret_value())
    return secret


def _postgres_url(secret: SecretStr) -> SecretStr:
    text = secret.get_secret_value()
    if "://" in text and not text.startswith(("postgres://", "postgresql://")):
        scheme = text.partition("://")[0]
        raise invalid(f"{scheme}:// is not a Postgres URL", "write postgresql://user@host:5432/database")
    if "://" not in text and "=" not in text:
        raise invalid("not a Postgres URL", "write postgresql://user@host:5432/database")
    import psycopg.conninfo

    try:
        remember(str(psycopg.conninfo.conninfo_to_dict(text).get("password") or ""))
    except psycopg.Error as error:
        # libpq quotes what it does not understand, which may be a piece of a password: of its words
        # only those are repeated that name an option.
        said = str(error).strip()
        named = (
            said if said.startswith(("invalid URI query parameter", "invalid connection option")) else ""
        )
        raise invalid(
            "libpq cannot read this URL" + (f": {named}" if named else ""),
            "in a URL, characters such as @ : / % in a password are written as %40 %3A %2F %25",
        ) from None
    return secret


Secret = Annotated[
    SecretStr,
    AfterValidator(_remember),
    PlainSerializer(_show_secret, return_type=str),
    WithJsonSchema({"type": "string", "title": "secret", "writeOnly": True}),
]
"""Shown as stars, in errors and dumps too; `.get_secret_value()` where it is used."""

PostgresUrl = Annotated[
    SecretStr,
    AfterValidator(_postgres_url),
    PlainSerializer(_show_url, return_type=str),
    WithJsonSchema(
        {"type": "string", "title": "Postgres URL", "examples": ["postgresql://me@localhost/shop"]}
    ),
]
"""Anything libpq connects with, a URL or `key=value` pairs; its password is shown as stars."""
