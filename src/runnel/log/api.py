"""The change log's Protocol: durable, ordered, replayable chunks of what the slot sent.

What comes in: whole pgoutput frames, as received (XLogData payloads with their 25-byte head), cut at
transaction ends. What goes out: the same frames, chunk by chunk, to any number of readers.

What must hold, for every implementation (tests/contract/log.py proves it):
- durable before visible: a chunk that a reader can see survives a power cut;
- a chunk covers (start, end]; it is accepted only where the one before ended; `append` is
  compare-and-set: of two appenders at one start exactly one succeeds, the other gets `Refused`;
- the parts of one large transaction become visible together;
- a torn, corrupt or foreign chunk is an error that names the file, never skipped;
- `trim` never removes the last chunk: the log always knows where it ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..changes.relation import Relation
from ..postgres.lsn import Lsn

PAD = 1 << 16
"""Unused bytes before the first frame in a reader's buffer: marshalling puts its literals there."""

FRAME_HEAD = 25
"""Bytes before the pgoutput message in a frame: 'w', WAL start, WAL end, send time."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """What an LSN is valid for. `slot` ends in the first eight digits of the subscription's uuid."""

    system_id: str
    timeline: int
    slot: str

    def same_source(self, other: Lineage) -> bool:
        """One server and slot, whatever became of the timeline."""
        return (self.system_id, self.slot) == (other.system_id, other.slot)

    def to_json(self) -> dict[str, Any]:
        return {"system_id": self.system_id, "timeline": self.timeline, "slot": self.slot}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Lineage:
        return cls(value["system_id"], value["timeline"], value["slot"])


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """The transaction a part belongs to. A streamed one has no Begin and no Commit frame of its own."""

    xid: int
    lsn: Lsn
    end: Lsn
    time: int
    """Commit time in microseconds since 1970, UTC."""


@dataclass(frozen=True, slots=True)
class Piece:
    """About 1 MB of whole frames inside a chunk, checked and decoded at once."""

    frames: int
    bytes: int
    checksum: int
    """xxh3_64 over the frames' bytes."""


@dataclass(frozen=True, slots=True)
class ChunkHeader:
    lineage: Lineage
    epoch: int
    """Of the capture that wrote it."""
    start: Lsn
    end: Lsn
    """The chunk holds every transaction whose end LSN is in (start, end]. No frames: nothing there."""
    part: int = 0
    parts: int = 1
    first_seq: int = 0
    """`seq` of the first change, for a part that begins inside a transaction."""
    transaction: OpenTransaction | None = None
    """Set on every part of a transaction that has its chunks for itself."""
    streamed: bool = False
    """Frames come from pgoutput's stream of an open transaction: change, relation, type and message
    frames carry a 4-byte (sub)xid after their type byte, and there is no Begin or Commit."""
    transactions: int = 0
    changes: int = 0
    first_time: int = 0
    last_time: int = 0
    """Commit times of the first and last transaction, microseconds since 1970 (of a message outside any:
    when the server sent it); 0 without one."""
    schema_change: bool = False
    relations: tuple[Relation, ...] = ()
    """Those in force at the first frame, of every table the chunk touches. A Relation frame inside
    the chunk that changes one is in `changed`."""
    changed: tuple[tuple[int, Relation], ...] = ()
    """(frame number, relation): from that frame on this version is in force for its oid."""
    pieces: tuple[Piece, ...] = ()
    version: int = 1


@dataclass(frozen=True, slots=True)
class ChunkRef:
    """One visible chunk (one part of it): enough to plan a batch, small enough to send to a task."""

    name: str
    start: Lsn
    end: Lsn
    part: int
    parts: int
    bytes: int
    changes: int
    last_time: int
    schema_change: bool


@dataclass(frozen=True, slots=True)
class PieceData:
    buffer: npt.NDArray[np.uint8]
    """The frames' bytes with `PAD` unused bytes before (room for literals) and slack behind.
    Valid until the next piece is read: the buffer is used again."""
    offsets: npt.NDArray[np.int64]
    """Start of each frame in `buffer`, and the end of the last: frames + 1 numbers."""
    first_frame: int


class ChunkReader(Protocol):
    header: ChunkHeader

    def pieces(self) -> Iterator[PieceData]:
        """The frames, piece by piece, each checked against its checksum first."""
        ...

    def close(self) -> None: ...


class ChunkWriter(Protocol):
    """A chunk being filled; nobody sees it before `ChangeLog.append`. `discard` throws it away."""

    size: int
    """Bytes of frames written so far."""
    frames: int

    def write(self, data: bytes | memoryview, lengths: npt.NDArray[np.int64]) -> None:
        """Whole frames, back to back, and the length of each. Bounded memory: it goes to disk."""
        ...

    def rest(self) -> None:
        """It is full, and waits for others to be appended with: it holds nothing per frame in memory."""
        ...

    def discard(self) -> None: ...


@dataclass(slots=True)
class Filled:
    """A written chunk with all its header says but what the writer itself knows (`pieces`)."""

    writer: ChunkWriter
    header: ChunkHeader


@dataclass(frozen=True, slots=True)
class Usage:
    bytes: int
    chunks: int
    first: Lsn | None
    end: Lsn | None


class ChangeLog(Protocol):
    path: str

    def writer(self) -> ChunkWriter: ...

    def append(self, parts: Sequence[Filled]) -> None:
        """Make the parts of one chunk durable, then visible, all together. `Refused` if something
        already begins at their start, or if they do not begin where the log ends. `Transient` if the
        disk is full: the same call may be made again. Only after it returned may it be acknowledged."""
        ...

    def advance(self, header: ChunkHeader) -> None:
        """Append a chunk without frames: nothing happened in (start, end]."""
        ...

    def usage(self) -> Usage: ...

    def chunks(self, after: Lsn) -> Iterator[ChunkRef]:
        """The unbroken chain from the chunk that covers `after` (start <= after < end) to the end, all
        parts. Empty at the end of the log. `Refused` if `after` is before the first chunk or the
        chain is broken. Cheap to call again with the end of the last chunk seen (one look-up)."""
        ...

    def open(self, name: str) -> ChunkReader: ...

    def lineage(self) -> Lineage | None:
        """Of the last chunk; None for an empty log."""
        ...

    def trim(self, upto: Lsn, *, keep_since: int = 0) -> int:
        """Delete chunks that end at or before `upto` and whose last commit is older than
        `keep_since` (µs since 1970; 0 keeps none for replay). Returns the bytes freed."""
        ...

    def sweep(self) -> list[str]:
        """By the owner, at start: remove what an earlier writer left unfinished; names of files that are
        not ours are returned, never removed."""
        ...

    def destroy(self) -> None:
        """Remove everything that is the log's, and the place itself if nothing else is in it."""
        ...


@dataclass(slots=True)
class LogSettings:
    path: str
    retain_seconds: int = 0
    max_bytes: int = 10 << 30
    chunk_bytes: int = 8 << 20
    piece_bytes: int = field(default=1 << 20)
