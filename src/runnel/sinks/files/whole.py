"""The driver half where files appear whole: Parquet, and everything on an object store.

What comes in: receipts that name staged pieces; they wait, staged, until there is enough of them or
they are old enough. Then all are closed together: small ones are merged, large ones published as they
are, and only then the record, and with it the position, moves. What must hold: staged pieces stay
until the record names their files, so that closing may fail anywhere and be repeated.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...errors import Refused, Transient
from ...failpoints import failpoint
from ...postgres.lsn import Lsn
from ...progress.position import Position
from ..api import Batch, Name, Receipt
from ..trouble import told
from .names import data_name
from .owner import Owner, capabilities
from .parquet import merge as merge_parquet
from .place import Place
from .record import Record, already_there
from .settings import FilesSettings
from .stage import Piece, discard, pieces_of

_STEP = 4 << 20
_ALL = 4
"""So many times `roll_bytes` over all folders, and everything is closed."""


class WholeFiles:
    def __init__(
        self, settings: FilesSettings, place: Place, pipeline: str, *, begun: bool = False
    ) -> None:
        self.capabilities = capabilities(settings)
        self._settings = settings
        self._place = place
        self._owner = Owner(place, settings, pipeline, begun=begun)
        self._durable = self._accepted = Lsn(0)
        self._pending: list[Piece] = []
        self._since = 0.0

    def open(self, position: Position) -> Position:
        self._place.make()
        with told(self._place.root), self._place.lock():
            record = self._owner.take_over(position)
            self._owner.clean(record)
            self._owner.store(record)
        self._pending = []
        self._durable = self._accepted = record.position.lsn
        return record.position

    def task(self) -> Mapping[str, Any]:
        return {
            "settings": self._settings.model_dump(mode="json"),
            "stage": self._owner.stage_directory,
        }

    def commit(self, batch: Batch, receipts: Sequence[Receipt]) -> Lsn:
        pieces = pieces_of(receipts)
        with self._place.lock():
            record = self._current()
            if already_there(self._accepted, batch, self._owner.where):
                waiting = {piece.file for piece in self._pending}
                discard(self._place, [piece for piece in pieces if piece.file not in waiting])
                return self._durable
            if pieces and not self._pending:
                self._since = time.monotonic()
            self._pending += pieces
            self._accepted = batch.end
            if not self._pending or self._due():
                self._close(record)
            return self._durable

    def tick(self) -> Lsn:
        if self._pending and self._due():
            return self.flush()
        return self._durable

    def flush(self) -> Lsn:
        if self._accepted > self._durable:
            with self._place.lock():
                record = self._current()
                if self._accepted > self._durable:
                    self._close(record)
        return self._durable

    def reposition(self, lsn: Lsn) -> None:
        self.flush()
        with self._place.lock():
            self._owner.reposition(lsn)
        self._durable = self._accepted = lsn

    def redelivered(self) -> frozenset[Name]:
        return frozenset(self._owner.current().redelivered)

    def redeliver(self, names: Sequence[Name], receipts: Sequence[Receipt]) -> None:
        pieces = pieces_of(receipts)
        with self._place.lock():
            record = self._current()
            self._publish(record, pieces, replace(record, redelivered=tuple(names)))
            discard(self._place, pieces)
        failpoint("sink.committed")

    def close(self) -> None:
        return

    def _current(self) -> Record:
        """The record. One that has moved to where we want it was stored by a commit that failed later."""
        record = self._owner.current()
        if record.position.lsn == self._durable:
            return record
        if record.position.lsn != self._accepted:
            raise Refused(
                f"{self._owner.where} is at {record.position.lsn}, but we left it at {self._durable}",
                hint="another process has written there: stop one of them",
            )
        self._settle()
        return record

    def _due(self) -> bool:
        if time.monotonic() - self._since >= self._settings.roll_age:
            return True
        sizes: dict[str, int] = {}
        for piece in self._pending:
            sizes[piece.folder] = sizes.get(piece.folder, 0) + piece.bytes
        limit = self._settings.roll_bytes
        return max(sizes.values()) >= limit or sum(sizes.values()) >= _ALL * limit

    def _close(self, record: Record) -> None:
        self._publish(record, self._pending, record.at(self._accepted))
        self._settle()
        failpoint("sink.committed")

    def _publish(self, record: Record, pieces: Sequence[Piece], then: Record) -> None:
        """Pieces as files behind those that `record` counts, committed with what `then` says besides."""
        built: list[str] = []
        try:
            with told(self._place.root):
                for number, run in enumerate(self._runs(pieces), record.next):
                    built.append(data_name(run[0].folder, number, self._owner.suffix))
                    self._build(run, built[-1], number)
            failpoint("sink.written")
            self._owner.store(replace(then, next=record.next + len(built)))
        except Exception:
            if self._owner.current() is record:  # no record names them: no reader shall see them
                for name in built:
                    self._place.remove(name)
            raise

    def _settle(self) -> None:
        self._durable = self._accepted
        done, self._pending = self._pending, []
        discard(self._place, done)

    def _runs(self, pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
        """Pieces that become one file: of one folder and schema, in order, until the file is full."""
        folders: dict[str, list[Piece]] = {}
        for piece in pieces:
            folders.setdefault(piece.folder, []).append(piece)
        for of_folder in folders.values():
            run: list[Piece] = []
            size = 0
            for piece in of_folder:
                large = self._large(piece)
                if run and (large or size >= self._settings.roll_bytes or run[-1].schema != piece.schema):
                    yield run
                    run, size = [], 0
                run.append(piece)
                size += piece.bytes
                if large:
                    yield run
                    run, size = [], 0
            if run:
                yield run

    def _large(self, piece: Piece) -> bool:
        return piece.whole and piece.bytes * 4 >= self._settings.roll_bytes

    def _build(self, run: list[Piece], name: str, number: int) -> None:
        try:
            if len(run) == 1 and run[0].whole:
                self._place.publish(run[0].file, name)
                return
            staged = f"{self._owner.stage_prefix()}/whole-{number}"
            with self._place.create(name, staged) as target:
                if self._settings.format == "parquet" and len(run) > 1:
                    merge_parquet(self._place, run, target, self._settings.codec)
                else:
                    self._concatenate(run, target)
        except FileNotFoundError as error:
            raise Transient(
                f"a staged piece of {self._place.root} is gone: {error}",
                hint="the batch is run again by itself",
            ) from error

    def _concatenate(self, run: list[Piece], target: Any) -> None:
        for at, piece in enumerate(run):
            skip = piece.head if at else 0
            left = piece.bytes - skip
            with self._place.source(piece.file) as source:
                source.seek(piece.offset + skip)
                while left:
                    data = source.read(min(left, _STEP))
                    if not data:
                        raise Transient(
                            f"the staged piece {piece.file} ends {left} bytes too early",
                            hint="the batch is run again by itself",
                        )
                    target.write(data)
                    left -= len(data)
