"""Settings of the `stdout` sink."""

from __future__ import annotations

from typing import Literal

from ...settings import SinkSettings, Size


class StdoutSettings(SinkSettings):
    """One JSON object a line on standard output."""

    type: Literal["stdout"] = "stdout"
    """Chooses this sink."""
    format: Literal["jsonl"] = "jsonl"
    """How changes are written: one JSON object a line."""
    max_record_bytes: Size | None = None
    """A change whose line is longer is rejected (`on_error` decides). By default there is no limit."""

    def place(self) -> str:
        return "standard output"
