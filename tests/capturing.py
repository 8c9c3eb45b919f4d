"""What capture's tests share: a log in memory, relations without a catalogue, chunks read naively."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from runnel.capture.cutter import Cutter
from runnel.capture.protocol import RelationMessage, TypeMessage
from runnel.capture.relations import build
from runnel.capture.spool import Spools
from runnel.changes.relation import Relation
from runnel.log.api import ChunkHeader, Filled, Lineage
from runnel.postgres.lsn import Lsn
from runnel.postgres.types import ColumnType, Shape

LINEAGE = Lineage("7", 1, "shop_00000000")


@dataclass
class MemoryWriter:
    log: MemoryLog
    data: bytes = b""
    lengths: list[int] = field(default_factory=list)
    size: int = 0
    frames: int = 0

    def write(self, data: bytes | memoryview, lengths: npt.NDArray[np.int64]) -> None:
        assert int(lengths.sum()) == len(data)
        self.data += bytes(data)
        self.lengths += lengths.tolist()
        self.size, self.frames = len(self.data), len(self.lengths)

    def rest(self) -> None:
        return

    def discard(self) -> None:
        self.log.open_writers.remove(self)


@dataclass
class MemoryLog:
    chunks: list[tuple[ChunkHeader, list[bytes]]] = field(default_factory=list)
    open_writers: list[MemoryWriter] = field(default_factory=list)
    full: bool = False

    def writer(self) -> MemoryWriter:
        writer = MemoryWriter(self)
        self.open_writers.append(writer)
        return writer

    def append(self, parts: Sequence[Filled]) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        for number, part in enumerate(parts):
            header, writer = part.header, part.writer
            assert isinstance(writer, MemoryWriter)
            assert (header.part, header.parts) == (number, len(parts))
            assert header.end > header.start
            if self.chunks and number == 0:
                assert header.start == self.chunks[-1][0].end
            self.open_writers.remove(writer)
            ends = np.cumsum(writer.lengths)
            frames = [
                writer.data[end - length : end] for end, length in zip(ends, writer.lengths, strict=True)
            ]
            self.chunks.append((header, frames))

    def advance(self, header: ChunkHeader) -> None:
        writer = self.writer()
        self.append([Filled(writer, header)])


def describe(messages: Sequence[RelationMessage], _: Sequence[TypeMessage]) -> list[Relation]:
    text = {25: ColumnType(25, "text", Shape.TEXT)}
    return [build(message, text, None) for message in messages]


def cutter(log: Any, directory: Path, *, end: int = 0, chunk_bytes: int = 8 << 20, **more: Any) -> Cutter:
    return Cutter(
        log,
        Spools(directory / "spool"),
        describe,
        lineage=LINEAGE,
        epoch=1,
        end=Lsn(end),
        chunk_bytes=chunk_bytes,
        **more,
    )


@dataclass(frozen=True)
class Change:
    lsn: int
    seq: int
    what: str
    columns: int
    """Of the relation in force, by header and `changed`; 0 for what has none."""


def changes(log: MemoryLog) -> Iterator[Change]:
    """Everything in the log, frame by frame, the slow and obvious way."""
    lsn = seq = 0
    for header, frames in log.chunks:
        known = {relation.oid: relation for relation in header.relations}
        changed = dict(header.changed)
        if header.transaction is not None:
            lsn, seq = header.transaction.lsn, header.first_seq
        counted = 0
        at = 5 if header.streamed else 1
        for number, raw in enumerate(frames):
            if number in changed:
                known[changed[number].oid] = changed[number]
            message = raw[25:]
            kind = chr(message[0])
            if kind == "B":
                (lsn,) = struct.unpack_from("!Q", message, 1)
                seq = 0
            elif kind == "I":
                (oid,) = struct.unpack_from("!I", message, at)
                assert struct.unpack_from("!H", message, at + 5)[0] == len(known[oid].columns)
                size = struct.unpack_from("!I", message, at + 8)[0]
                text = message[at + 12 : at + 12 + size].decode()
                yield Change(lsn, seq, text, len(known[oid].columns))
                seq += 1
                counted += 1
            elif kind == "T":
                count = struct.unpack_from("!I", message, at)[0]
                for oid in struct.unpack_from(f"!{count}I", message, at + 5):
                    yield Change(lsn, seq, f"truncate {oid}", len(known[oid].columns))
                    seq += 1
                    counted += 1
            elif kind == "M":
                transactional = message[at] & 1
                own = struct.unpack_from("!Q", message, at + 1)[0]
                content = message[message.index(0, at + 9) + 5 :].decode()
                if not transactional:
                    lsn, seq = own, 0
                yield Change(lsn, seq, content, 0)
                seq += 1
                counted += 1
        assert counted == header.changes
        assert all(header.start <= lsn < header.end for lsn in ([lsn] if counted else []))
