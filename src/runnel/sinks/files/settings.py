"""Settings of the `files` sink. Light: no pyarrow here."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import field_validator, model_validator

from ...settings import Duration, Path, SinkSettings, Size, without_credentials


class FilesSettings(SinkSettings):
    """Files in a directory; their names sort in commit order, each change is in them exactly once."""

    type: Literal["files"] = "files"
    """Chooses this sink."""
    path: Path
    """Directory (or URL of one) that the files are written to; made when missing."""
    format: Literal["jsonl", "csv", "parquet"] = "jsonl"
    """How changes are written: one JSON object a line, CSV, or Parquet with typed columns."""
    compression: Literal["none", "gzip", "zstd"] | None = None
    """Compression of each file; by default `none`, inside Parquet `zstd`."""
    layout: Literal["stream", "table"] | None = None
    """`stream`: all tables in one sequence of files; `table`: one folder per table. By default `stream`,
    for Parquet `table`."""
    roll_bytes: Size = 128 << 20
    """A file is closed and the next one begun when it reaches this size."""
    roll_seconds: Duration | None = None
    """A file is closed when it is this old. By default one hour; ten minutes for Parquet and object
    stores, where a pipeline's position moves only when files are closed."""
    max_record_bytes: Size | None = None
    """A change whose line is longer is rejected (`on_error` decides). By default there is no limit."""

    @field_validator("path")
    @classmethod
    def _no_credentials(cls, value: str) -> str:
        return without_credentials(value)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.format == "parquet" and self.layout == "stream":
            raise ValueError("Parquet has typed columns per table: use `layout: table`")
        if self.max_record_bytes is not None and self.format != "jsonl":
            raise ValueError("max_record_bytes is the length of a JSON line: use `format: jsonl`")
        if self.roll_bytes < 1:
            raise ValueError("roll_bytes must be at least 1")
        return self

    @property
    def remote(self) -> bool:
        return "://" in self.path

    @property
    def whole(self) -> bool:
        """Files appear whole when they are closed, instead of growing."""
        return self.remote or self.format == "parquet"

    @property
    def codec(self) -> str:
        return self.compression or ("zstd" if self.format == "parquet" else "none")

    @property
    def by_table(self) -> bool:
        return (self.layout or ("table" if self.format == "parquet" else "stream")) == "table"

    @property
    def roll_age(self) -> float:
        return self.roll_seconds if self.roll_seconds is not None else (600.0 if self.whole else 3600.0)

    def place(self) -> str:
        return self.path
