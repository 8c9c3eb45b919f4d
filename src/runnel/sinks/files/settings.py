"""Settings of the `files` sink. Light: no pyarrow here."""

from __future__ import annotations

from typing import Literal

from ...settings import Duration, Path, SinkSettings, Size


class FilesSettings(SinkSettings):
    """Files in a directory; their names sort in commit order, each change is in them exactly once."""

    type: Literal["files"] = "files"
    """Chooses this sink."""
    path: Path
    """Directory (or URL of one) that the files are written to; made when missing."""
    format: Literal["jsonl", "csv", "parquet"] = "jsonl"
    """How changes are written: one JSON object a line, CSV, or Parquet with typed columns."""
    compression: Literal["none", "gzip", "zstd"] = "none"
    """Compression of each file."""
    layout: Literal["stream", "table"] = "stream"
    """`stream`: all tables in one sequence of files; `table`: one folder per table."""
    roll_bytes: Size = 128 << 20
    """A file is closed and the next one begun when it reaches this size."""
    roll_seconds: Duration = 3600
    """A file is closed when it is this old."""

    def place(self) -> str:
        return self.path
