"""Every sink by its `type`: the settings a user writes, and the two halves that do the work.

Settings are light and always loaded; the halves live in the sink's own package, imported on first
use, so that the command line starts without pyarrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..settings import SinkSettings
from .files.settings import FilesSettings
from .stdout.settings import StdoutSettings

if TYPE_CHECKING:  # numpy stays out of the command line's start
    from .api import Attempt, Sink, Writer


@dataclass(frozen=True, slots=True)
class SinkContext:
    """What a sink may know of the pipeline it serves."""

    pipeline: str
    stage: str
    """A directory for staged output of a sink without a place of its own."""
    begun: bool = False
    """It has opened a target before, and nobody said that it begins in another: one that holds positions
    and has none was lost, or is not the one it was."""


@dataclass(frozen=True, slots=True)
class SinkType:
    settings: type[SinkSettings]
    module: str
    """Has `sink(settings, context) -> Sink` and `writer(task, attempt) -> Writer`."""
    schemes: tuple[str, ...] = ()
    """URL schemes that `--sink URL` understands as this type."""

    def sink(self, settings: SinkSettings, context: SinkContext) -> Sink:
        made: Sink = import_module(self.module).sink(settings, context)
        return made

    def writer(self, task: Mapping[str, Any], attempt: Attempt) -> Writer:
        made: Writer = import_module(self.module).writer(task, attempt)
        return made


SINKS: dict[str, SinkType] = {
    "files": SinkType(
        FilesSettings, "runnel.sinks.files.sink", schemes=("file", "s3", "gs", "abfs", "hdfs")
    ),
    "stdout": SinkType(StdoutSettings, "runnel.sinks.stdout.sink"),
}
