"""What both driver halves of the files sink share: taking the output over, and its record.

The record is read again under the lock before every commit, so that a later owner, or a commit that
did its work and then failed, is seen from the place itself and never from memory.
"""

from __future__ import annotations

from dataclasses import replace

from ...errors import Refused
from ...failpoints import failpoint
from ...postgres.lsn import Lsn
from ...progress.position import Position
from ..api import Capabilities, Plan
from ..trouble import told
from .names import RECORD, STAGE, number_of, suffix
from .place import Place
from .record import Record
from .settings import FilesSettings


def capabilities(settings: FilesSettings) -> Capabilities:
    return Capabilities(
        plan=Plan.STAGED,
        holds_position=True,
        guarantee="exactly once: the position is part of the commit",
        max_record_bytes=settings.max_record_bytes,
        default_json=settings.format == "jsonl",
    )


class Owner:
    """The record of an output, under one epoch."""

    def __init__(
        self, place: Place, settings: FilesSettings, pipeline: str, *, begun: bool = False
    ) -> None:
        self.place = place
        self._pipeline = pipeline
        self._begun = begun
        self.suffix = suffix(settings.format, settings.codec)
        self.where = f"{place.root}/{RECORD}"
        self._kept = {
            "format": settings.format,
            "layout": "table" if settings.by_table else "stream",
            "compression": settings.codec,
        }
        self._epoch = -1
        self._last: tuple[bytes, Record] | None = None

    @property
    def stage_directory(self) -> str:
        """One for each owner: what an earlier one's tasks still write is not among ours."""
        return f"e{self._epoch:08d}"

    def take_over(self, position: Position) -> Record:
        """To be called under the lock. Gives the record as it is now, under our epoch; not yet written."""
        data = self.place.read(RECORD)
        if data is not None:
            before = Record.decode(data, self.where)
            record = before.taken_over(position, self._kept, self._pipeline, self.where)
        else:
            names = self.place.data_names()
            if names:
                raise Refused(
                    f"{self.place.root} has files such as {min(names)} but no {RECORD}",
                    hint="give the pipeline a new path, or move these files away",
                )
            if self._begun:
                raise Refused(
                    f"{self.where} is not there, but pipeline {self._pipeline!r} has delivered up to"
                    f" {position.lsn}: what it wrote was removed, or lay elsewhere",
                    hint="put it back; or begin anew in this place from where you need it: runnel replay"
                    f" {self._pipeline} --from {position.lsn} (or earlier; a run without a file: runnel"
                    " destroy)",
                )
            record = Record(position, self._kept, self._pipeline)
        self._epoch = position.epoch
        return record

    def clean(self, record: Record) -> None:
        """Remove what was never committed: files numbered past the record, and all that is staged."""
        for name in self.place.data_names():
            number = number_of(name)
            if number is not None and number >= record.next:
                self.place.remove(name)
        self.place.sweep()

    def current(self) -> Record:
        """The record as the place has it; `Refused` if somebody else owns it by now."""
        with told(self.where):
            data = self.place.read(RECORD)
        if data is None:
            raise Refused(f"{self.where} is gone", hint="restore it, or give the pipeline a new path")
        if self._last is not None and self._last[0] == data:
            return self._last[1]
        record = Record.decode(data, self.where)
        if record.position.epoch != self._epoch:
            raise Refused(
                f"{self.where} was taken over (epoch {record.position.epoch}, ours is {self._epoch})",
                hint="another process runs this pipeline now: stop one of them",
            )
        self._last = (data, record)
        return record

    def store(self, record: Record) -> None:
        data = record.encode()
        with told(self.where):
            self.place.replace(RECORD, data)
        self._last = (data, record)

    def commit(self, record: Record) -> None:
        failpoint("sink.written")
        self.store(record)
        failpoint("sink.committed")

    def reposition(self, lsn: Lsn) -> Record:
        record = self.current()
        # What follows is delivered again on purpose, and may be rejected again.
        earlier = tuple(name for name in record.redelivered if name[0] < lsn)
        record = replace(record, position=record.position.at(lsn), redelivered=earlier)
        self.store(record)
        return record

    def stage_prefix(self) -> str:
        return f"{STAGE}/{self.stage_directory}"
