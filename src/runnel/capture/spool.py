"""Transactions that pgoutput streams before they commit, kept on disk until their fate is known.

What comes in: the frames of stream blocks, by top-level xid; aborts of sub-transactions. What goes out,
at Stream Commit: the frames that survived, in order, about 1 MB at a time.

What must hold: memory does not grow with a transaction's rows, only (a little) with its live
sub-transactions. A sub-transaction's abort cuts the file back to where its first frame stands: until it
ends, a session writes nothing but it and its descendants. Spools never outlive the connection: the
server sends open transactions again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from . import protocol
from .protocol import Frames, frames_of

WINDOW = 1 << 20
_LENGTHS = 1 << 14


class _Place(NamedTuple):
    offset: int
    frame: int


class _Description(NamedTuple):
    """A Relation or Type frame. The server sends one once per streamed transaction, maybe inside a
    sub-transaction that is rolled back, and relies on it afterwards: it survives the cut."""

    place: _Place
    frame: bytes


class Spool:
    def __init__(self, directory: Path, xid: int) -> None:
        self.xid = xid
        self.size = 0
        self.frames = 0
        self._data_path = directory / f"{xid}.frames"
        self._lengths_path = directory / f"{xid}.lengths"
        self._data = -1
        self._lengths = -1
        self._first: dict[int, _Place] = {}
        """Where each live sub-transaction begins; insertion order is file order."""
        self._descriptions: dict[tuple[int, int], _Description] = {}

    def open(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._data = os.open(self._data_path, flags, 0o600)
        self._lengths = os.open(self._lengths_path, flags, 0o600)

    def close(self) -> None:
        """Between its blocks a spool holds no file descriptor: there may be many."""
        for fd in (self._data, self._lengths):
            if fd >= 0:
                os.close(fd)
        self._data = self._lengths = -1

    def write(self, frames: Frames) -> None:
        if not len(frames):
            return
        self._note(frames)
        self._append(frames.data, frames.length)

    def abort(self, subxid: int) -> None:
        """Drop what a sub-transaction wrote; one that wrote nothing here is no news."""
        place = self._first.get(subxid)
        if place is None:
            return
        while self._first and next(reversed(self._first.values())).offset >= place.offset:
            self._first.popitem()
        kept = sorted(
            (key for key, found in self._descriptions.items() if found.place.offset >= place.offset),
            key=lambda key: self._descriptions[key].place,
        )
        self.size, self.frames = place
        self.open()
        try:
            os.ftruncate(self._data, self.size)
            os.ftruncate(self._lengths, self.frames * 4)
            for key in kept:
                frame = self._descriptions[key].frame
                self._descriptions[key] = _Description(_Place(self.size, self.frames), frame)
                self._append(memoryview(frame), np.array([len(frame)], np.int64))
        finally:
            self.close()

    def windows(self, size: int = WINDOW) -> Iterator[Frames]:
        """All frames in order, whole, about `size` bytes at a time (a larger frame alone)."""
        self.open()
        try:
            offset = done = 0
            while done < self.frames:
                raw = os.pread(self._lengths, 4 * min(_LENGTHS, self.frames - done), 4 * done)
                length = np.frombuffer(raw, "<u4").astype(np.int64)
                fit = int(np.searchsorted(np.cumsum(length), size, side="right"))
                length = length[: max(fit, 1)]
                data = bytearray(int(length.sum()))
                _read(self._data, memoryview(data), offset)
                yield frames_of(memoryview(data), length)
                offset += len(data)
                done += len(length)
        finally:
            self.close()

    def drop(self) -> None:
        self.close()
        self._data_path.unlink(missing_ok=True)
        self._lengths_path.unlink(missing_ok=True)

    def _note(self, frames: Frames) -> None:
        """Remember where sub-transactions begin and which descriptions there are."""
        carrying = np.flatnonzero(frames.kind != protocol.ORIGIN)  # an Origin frame has no xid
        xids = frames.u32(carrying, 1)
        heads = np.flatnonzero(np.diff(xids, prepend=np.uint32(self.xid)) != 0)
        for head in heads.tolist():  # per switch between sub-transactions, not per row
            xid = int(xids[head])
            if xid != self.xid and xid not in self._first:
                number = int(carrying[head])
                self._first[xid] = self._place(frames, number)
        described = (frames.kind == protocol.RELATION) | (frames.kind == protocol.TYPE)
        for number in np.flatnonzero(described).tolist():
            message = frames.message(number)
            oid = int.from_bytes(message[5:9], "big")
            frame = bytes(frames.data[int(frames.start[number]) : int(frames.start[number + 1])])
            key = (int(frames.kind[number]), oid)
            self._descriptions.pop(key, None)
            self._descriptions[key] = _Description(self._place(frames, number), frame)

    def _place(self, frames: Frames, number: int) -> _Place:
        return _Place(self.size + int(frames.start[number]), self.frames + number)

    def _append(self, data: memoryview, length: npt.NDArray[np.int64]) -> None:
        _write(self._data, data, self.size)
        _write(self._lengths, memoryview(length.astype("<u4").tobytes()), self.frames * 4)
        self.size += len(data)
        self.frames += len(length)


class Spools:
    """The spools of one replication connection, in a directory of their own."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self._spools: dict[int, Spool] = {}
        self.clear()

    def __len__(self) -> int:
        return len(self._spools)

    @property
    def bytes(self) -> int:
        return sum(spool.size for spool in self._spools.values())

    def start(self, xid: int) -> Spool:
        """A stream block of this transaction begins."""
        spool = self._spools.get(xid)
        if spool is None:
            self.directory.mkdir(parents=True, exist_ok=True)
            spool = self._spools[xid] = Spool(self.directory, xid)
        spool.open()
        return spool

    def abort(self, xid: int, subxid: int) -> None:
        if xid == subxid:
            self.drop(xid)
        elif (spool := self._spools.get(xid)) is not None:
            spool.abort(subxid)

    def get(self, xid: int) -> Spool | None:
        return self._spools.get(xid)

    def drop(self, xid: int) -> None:
        spool = self._spools.pop(xid, None)
        if spool is not None:
            spool.drop()

    def clear(self) -> None:
        """Throw all away: at start what a killed capture left, later what a lost connection left."""
        for spool in self._spools.values():
            spool.close()
        self._spools.clear()
        shutil.rmtree(self.directory, ignore_errors=True)


def _write(fd: int, data: memoryview, offset: int) -> None:
    while len(data):
        done = os.pwrite(fd, data, offset)
        data, offset = data[done:], offset + done


def _read(fd: int, into: memoryview, offset: int) -> None:
    while len(into):
        done = os.preadv(fd, [into], offset)
        if not done:
            raise OSError("a spool of a streamed transaction is shorter than what was written to it")
        into, offset = into[done:], offset + done
