"""The driver half where files grow: JSON lines and CSV in a local directory.

What comes in: receipts that name staged pieces. What goes out: data files that end with those pieces,
and the record. A small piece is appended to its folder's open file; a large one becomes the next file
as it is, without a copy, and later small ones are appended to that. The position moves with every
commit. What must hold: bytes past a file's committed length are cut off before anything is appended,
so that a commit may fail anywhere and be repeated.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from ...errors import Refused, Transient
from ...postgres.lsn import Lsn
from ...progress.position import Position
from ..api import Batch, Name, Receipt
from ..transfer import copy_range
from ..trouble import told
from .names import data_name
from .owner import Owner, capabilities
from .place import LocalPlace, sync_directory
from .record import OpenFile, Record, already_there
from .settings import FilesSettings
from .stage import Piece, discard, pieces_of

_MANY = 8
"""From so many touched files on they are synced beside each other."""
_MOST = 256
"""No more files are held open at once: a process may often have only 1024."""


class GrowingFiles:
    def __init__(self, settings: FilesSettings, pipeline: str, *, begun: bool = False) -> None:
        self.capabilities = capabilities(settings)
        self._settings = settings
        self._place = LocalPlace(settings.path)
        self._owner = Owner(self._place, settings, pipeline, begun=begun)

    def open(self, position: Position) -> Position:
        self._place.make()
        with told(self._place.root), self._place.lock():
            record = self._owner.take_over(position)
            for file in record.open.values():
                self._cut(file)
            self._owner.clean(record)
            self._owner.store(record)
            return record.position

    def task(self) -> Mapping[str, Any]:
        return {
            "settings": self._settings.model_dump(mode="json"),
            "stage": self._owner.stage_directory,
        }

    def commit(self, batch: Batch, receipts: Sequence[Receipt]) -> Lsn:
        pieces = pieces_of(receipts)
        with self._place.lock():
            record = self._owner.current()
            if not already_there(record.position.lsn, batch, self._owner.where):
                self._append(record, pieces, record.at(batch.end))
            discard(self._place, pieces)
            return self._owner.current().position.lsn

    def _append(self, record: Record, pieces: Sequence[Piece], then: Record) -> None:
        """Pieces behind what `record` says, committed with what `then` says besides."""
        draft = _Draft(self._place, record, self._owner.suffix, self._settings)
        try:
            with told(self._place.root):
                for piece in pieces:
                    draft.add(piece)
                draft.sync()
            self._owner.commit(draft.on(then))
        except Exception:
            if self._owner.current() is record:
                draft.undo()
            raise

    def tick(self) -> Lsn:
        # A file's age is looked at when something is appended: a quiet table leaves no empty files.
        return self._owner.current().position.lsn

    def flush(self) -> Lsn:
        return self._owner.current().position.lsn

    def reposition(self, lsn: Lsn) -> None:
        with self._place.lock():
            self._owner.reposition(lsn)

    def redelivered(self) -> frozenset[Name]:
        return frozenset(self._owner.current().redelivered)

    def redeliver(self, names: Sequence[Name], receipts: Sequence[Receipt]) -> None:
        pieces = pieces_of(receipts)
        with self._place.lock():
            record = self._owner.current()
            self._append(record, pieces, replace(record, redelivered=tuple(names)))
            discard(self._place, pieces)

    def close(self) -> None:
        return

    def _cut(self, file: OpenFile) -> None:
        size = self._place.size(file.name)
        path = self._place.path(file.name)
        if size is None or size < file.bytes:
            found = "it is missing" if size is None else f"it has {size}"
            raise Refused(
                f"{path} must have {file.bytes} bytes, but {found}",
                hint=f"restore the file; to go on without it, remove it from `open` in {self._owner.where}",
            )
        if size > file.bytes:
            os.truncate(path, file.bytes)


class _Draft:
    """A commit in the making: data in place, not yet in the record."""

    def __init__(self, place: LocalPlace, record: Record, suffix: str, settings: FilesSettings) -> None:
        self._place = place
        self._before = record
        self._suffix = suffix
        self._settings = settings
        self._open = dict(record.open)
        self._next = record.next
        self._touched: dict[str, int] = {}
        """Name to descriptor, of every file that was appended to."""
        self._new: list[str] = []
        self._source: tuple[str, int] = ("", -1)
        """The staged file that was read last: pieces of many tables share one."""
        self._now = time.time()

    def add(self, piece: Piece) -> None:
        whole = piece.whole and piece.bytes * 4 >= self._settings.roll_bytes
        file = self._open.get(piece.folder)
        if file is not None and (whole or self._is_full(file) or file.schema != piece.schema):
            del self._open[piece.folder]
            self._descriptor(file)  # cuts off what a failed commit left behind it
            file = None
        if whole:
            self._publish(piece)
        else:
            self._append(piece, file)

    def _is_full(self, file: OpenFile) -> bool:
        return file.bytes >= self._settings.roll_bytes or self._now - file.opened >= self._settings.roll_age

    def _publish(self, piece: Piece) -> None:
        name = self._number(piece.folder)
        with self._staged(piece):
            self._place.publish(piece.file, name)
            if self._place.size(name) != piece.bytes:  # a failed commit had appended to it already
                os.truncate(self._place.path(name), piece.bytes)
        self._open[piece.folder] = OpenFile(name, piece.bytes, self._now, piece.schema)

    def _append(self, piece: Piece, file: OpenFile | None) -> None:
        skip = 0
        if file is None:
            file = OpenFile(self._number(piece.folder), 0, self._now, piece.schema)
            self._place.make_folder(file.name)
        else:
            skip = piece.head
        fd = self._descriptor(file)
        os.lseek(fd, file.bytes, os.SEEK_SET)
        with self._staged(piece):
            copy_range(self._read(piece.file), piece.offset + skip, piece.bytes - skip, fd)
        self._open[piece.folder] = replace(file, bytes=file.bytes + piece.bytes - skip)

    def _number(self, folder: str) -> str:
        name = data_name(folder, self._next, self._suffix)
        self._next += 1
        self._new.append(name)
        return name

    def _read(self, name: str) -> int:
        if self._source[0] != name:
            fd = os.open(self._place.path(name), os.O_RDONLY | os.O_CLOEXEC)
            self._close_source()
            self._source = (name, fd)
        return self._source[1]

    def _close_source(self) -> None:
        if self._source[0]:
            os.close(self._source[1])
            self._source = ("", -1)

    def _descriptor(self, file: OpenFile) -> int:
        fd = self._touched.get(file.name)
        if fd is None:
            if len(self._touched) >= _MOST:
                self._sync_touched()
            path = self._place.path(file.name)
            create = os.O_CREAT if file.name in self._new else 0
            fd = self._touched[file.name] = os.open(path, os.O_RDWR | os.O_CLOEXEC | create, 0o644)
            os.ftruncate(fd, file.bytes)
        return fd

    def _staged(self, piece: Piece) -> _Missing:
        return _Missing(self._place.path(piece.file))

    def sync(self) -> None:
        self._sync_touched()
        self._close_source()
        for folder in _folders(self._place, self._new):
            sync_directory(folder)

    def _sync_touched(self) -> None:
        descriptors = list(self._touched.values())
        if len(descriptors) < _MANY:
            for fd in descriptors:
                os.fdatasync(fd)
        else:
            with ThreadPoolExecutor(_MANY) as pool:
                list(pool.map(os.fdatasync, descriptors))
        self._release()

    def on(self, record: Record) -> Record:
        return replace(record, next=self._next, open=self._open)

    def undo(self) -> None:
        """Take back what no record names: frees the space, and no reader sees it."""
        self._release()
        self._close_source()
        for name in self._new:
            self._place.remove(name)
        for file in self._before.open.values():
            size = self._place.size(file.name)
            if size is not None and size > file.bytes:
                os.truncate(self._place.path(file.name), file.bytes)

    def _release(self) -> None:
        while self._touched:
            os.close(self._touched.popitem()[1])


class _Missing:
    """A staged piece that is not there is found again by running the batch again."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, FileNotFoundError):
            raise Transient(
                f"the staged piece {self._path} is gone", hint="the batch is run again by itself"
            ) from error


def _folders(place: LocalPlace, names: Sequence[str]) -> set[str]:
    """Directories that a new file has changed: its own, and the root where its folder may be new."""
    return {os.path.dirname(place.path(name)) for name in names} | ({place.root} if names else set())
