"""What the global options say, handed to every command as `ctx.obj`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from ..errors import UsageError

if TYPE_CHECKING:  # pydantic and YAML are loaded when a configuration is
    from ..config import Config


class LogFormat(StrEnum):
    HUMAN = "human"
    JSON = "json"


def log_format_of(environment: Mapping[str, str]) -> LogFormat:
    given = environment.get("RUNNEL_LOG_FORMAT") or LogFormat.HUMAN
    try:
        return LogFormat(given)
    except ValueError:
        raise UsageError(
            f"RUNNEL_LOG_FORMAT: {given!r} is not allowed", hint=f"allowed: {', '.join(LogFormat)}"
        ) from None


@dataclass(frozen=True, slots=True)
class Invocation:
    config: Path | None
    debug: bool
    log_format: LogFormat

    def load(self, overrides: Mapping[str, Any] | None = None, *, file: bool = True) -> Config:
        """The configuration: the file named by -c, else ./runnel.yaml, with environment and `overrides`.
        `file` False: flags say everything, ./runnel.yaml is not looked at (one named by -c is)."""
        from ..config import DEFAULT_FILE, load

        return load(self.config, overrides, default=DEFAULT_FILE if file else None)

    def hand_down(self) -> None:
        """Child processes log as this one does."""
        os.environ["RUNNEL_LOG_FORMAT"] = self.log_format
        if self.debug:
            os.environ["RUNNEL_DEBUG"] = "1"


def invocation(ctx: typer.Context) -> Invocation:
    return cast(Invocation, ctx.obj)
