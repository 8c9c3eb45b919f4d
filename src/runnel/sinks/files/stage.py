"""A task's staged text: portions of windows in, pieces of files out, named in the receipt.

A folder with much output gets a staged file of its own, which the driver may publish as it is; what
many folders have little of shares one file, so that a thousand tables are not a thousand files for
each task. Each piece is a whole gzip member or zstd frame, so that pieces can be appended to one
another. A piece that needs a header (CSV) begins with it, `head` bytes long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import pyarrow as pa

from ...failpoints import failpoint
from ..api import Attempt, Receipt
from .names import STAGE
from .place import Place, StageFile

SPILL = 1 << 20
"""A folder with this much gets a staged file of its own."""
HOLD = 64 << 20
"""Over all folders, no more than this is kept in memory."""


@dataclass(frozen=True, slots=True)
class Portion:
    """Some rows of one folder, encoded, in commit order."""

    folder: str
    data: bytes | memoryview
    changes: int
    header: bytes = b""


@dataclass(slots=True)
class Piece:
    """Bytes of a staged file, for the end of one folder's output."""

    folder: str
    file: str
    offset: int
    bytes: int
    head: int
    schema: str
    changes: int
    whole: bool
    """The staged file holds this piece alone."""


@dataclass(slots=True)
class _Growing:
    folder: str
    header: bytes
    changes: int = 0
    held: list[bytes | memoryview] = field(default_factory=list)
    held_bytes: int = 0
    file: StageFile | None = None
    name: str = ""
    head: int = 0
    written: int = 0


class TextStage:
    def __init__(self, place: Place, base: str, codec: str, limit: int) -> None:
        self._place = place
        self._base = base
        self._codec = None if codec == "none" else pa.Codec(codec)
        self._limit = limit
        """A piece that has become this large is finished: files roll."""
        self._growing: dict[str, _Growing] = {}
        self._done: list[_Growing] = []
        self._held = 0
        self._files: list[str] = []

    def add(self, portion: Portion) -> None:
        growing = self._growing.get(portion.folder)
        if growing is None or growing.header != portion.header or growing.written >= self._limit:
            if growing is not None:
                self._done.append(growing)
            growing = self._growing[portion.folder] = _Growing(portion.folder, portion.header)
        growing.changes += portion.changes
        growing.held.append(portion.data)
        size = len(portion.data)
        growing.held_bytes += size
        self._held += size
        if growing.held_bytes >= SPILL:
            self._spill(growing)
        elif self._held >= HOLD:
            for each in [*self._done, *self._growing.values()]:
                self._spill(each)

    def finish(self, durable_from: int) -> list[Piece]:
        """Pieces in the order of each folder's rows. Those that may be published as they are (from
        `durable_from` bytes) are made durable here, beside each other; the others are copied."""
        shared: StageFile | None = None
        shared_name, at = "", 0
        pieces = []
        for growing in [*self._done, *self._growing.values()]:
            schema = growing.header.hex() if len(growing.header) < 16 else _fingerprint(growing.header)
            if growing.file is not None:
                self._spill(growing)
                growing.file.close(durable=growing.written >= durable_from)
                pieces.append(
                    Piece(growing.folder, growing.name, 0, growing.written, growing.head, schema,
                          growing.changes, whole=True)
                )  # fmt: skip
                continue
            if shared is None:
                shared_name = self._name()
                shared = self._place.stage(shared_name)
            data = b"".join(self._encoded(growing))
            shared.write(data)
            size = len(data)
            pieces.append(
                Piece(growing.folder, shared_name, at, size, growing.head, schema, growing.changes,
                      whole=False)
            )  # fmt: skip
            at += size
        if shared is not None:
            shared.close(durable=False)
        failpoint("sink.staged")
        return pieces

    def abort(self) -> None:
        for name in self._files:
            self._place.remove(name)

    def _spill(self, growing: _Growing) -> None:
        if not growing.held:
            return
        if growing.file is None:
            growing.name = self._name()
            growing.file = self._place.stage(growing.name)
        for data in self._encoded(growing):
            growing.file.write(data)
            growing.written += len(data)

    def _encoded(self, growing: _Growing) -> Iterator[bytes | memoryview]:
        if growing.header and not growing.head:
            head = self._member([growing.header])
            growing.head = len(head)
            yield head
        held, growing.held = growing.held, []
        self._held -= growing.held_bytes
        growing.held_bytes = 0
        if self._codec is not None:
            yield self._member(held)
        else:
            yield from held

    def _member(self, held: list[bytes | memoryview]) -> bytes | memoryview:
        data = held[0] if len(held) == 1 else b"".join(held)
        if self._codec is None:
            return data
        member: bytes = self._codec.compress(data, asbytes=True)
        return member

    def _name(self) -> str:
        name = f"{self._base}.{len(self._files)}"
        self._files.append(name)
        return name


def stage_base(directory: str, attempt: Attempt) -> str:
    """What the names of an attempt's staged files begin with: its range, and what makes it unique."""
    unique = "".join(c if c.isalnum() else "-" for c in attempt.attempt)
    return f"{STAGE}/{directory}/{attempt.start:016X}-{attempt.end:016X}-{attempt.index:05d}-{unique}"


_FIELDS = tuple(field.name for field in fields(Piece))


def to_payload(pieces: list[Piece]) -> dict[str, Any]:
    return {"pieces": [{name: getattr(piece, name) for name in _FIELDS} for piece in pieces]}


def pieces_of(receipts: Sequence[Receipt]) -> list[Piece]:
    """What the tasks of a batch have staged, in commit order."""
    return [
        Piece(**piece)
        for receipt in sorted(receipts, key=lambda r: r.index)
        for piece in receipt.payload["pieces"]
    ]


def discard(place: Place, pieces: Iterable[Piece]) -> None:
    for name in {piece.file for piece in pieces}:
        place.remove(name)


def _fingerprint(header: bytes) -> str:
    import xxhash

    return xxhash.xxh3_128_hexdigest(header)
