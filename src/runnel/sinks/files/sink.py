"""The files sink: chooses its driver half by where and what it writes, and makes the task half."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...changes.block import Window
from ..api import Attempt, Reject, Sink, Writer
from ..registry import SinkContext
from ..trouble import told
from .csv import CsvStream, CsvTables
from .growing import GrowingFiles
from .parquet import ParquetRows, ParquetStage
from .place import LocalPlace, Place
from .settings import FilesSettings
from .stage import TextStage, stage_base, to_payload
from .text import Encoder, JsonLines, TextWriter
from .whole import WholeFiles


def sink(settings: FilesSettings, context: SinkContext) -> Sink:
    if settings.whole:
        return WholeFiles(settings, place_of(settings), context.pipeline, begun=context.begun)
    return GrowingFiles(settings, context.pipeline, begun=context.begun)


def writer(task: Mapping[str, Any], attempt: Attempt, place: Place | None = None) -> Writer:
    settings = FilesSettings.model_validate(task["settings"])
    place = place or place_of(settings)
    base = stage_base(task["stage"], attempt)
    if settings.format == "parquet":
        return ParquetWriter(settings, place, base)
    stage = TextStage(place, base, settings.codec, settings.roll_bytes)
    return TextWriter(settings.path, encoder(settings), stage, durable_from=settings.roll_bytes // 4)


def place_of(settings: FilesSettings) -> Place:
    if not settings.remote:
        return LocalPlace(settings.path)
    from .remote import RemotePlace

    return RemotePlace(settings.path)


def encoder(settings: FilesSettings) -> Encoder:
    if settings.format == "csv":
        return CsvTables() if settings.by_table else CsvStream()
    return JsonLines(settings.by_table, settings.max_record_bytes)


class ParquetWriter:
    def __init__(self, settings: FilesSettings, place: Place, base: str) -> None:
        self._settings = settings
        self._rows = ParquetRows()
        self._stage = ParquetStage(place, base, settings.codec, settings.roll_bytes)

    def write(self, window: Window) -> Sequence[Reject]:
        rejects: list[Reject] = []
        with told(self._settings.path):
            for folder, rows in self._rows.encode(window, rejects):
                self._stage.add(folder, rows)
        return rejects

    def finish(self) -> Mapping[str, Any]:
        with told(self._settings.path):
            return to_payload(self._stage.finish())

    def abort(self) -> None:
        try:
            self._stage.abort()
        except OSError:
            return  # the next owner sweeps the stage
