"""A chunk as bytes: what the writer puts into a file and what the reader proves before it hands it out.

    magic | frames … | length of each frame, uint32 | header, JSON | relations, JSON each | footer

Everything is little-endian. Frames go to the file as they come, so a writer's memory is four bytes a
frame, and none once it rests; all that describes them stands behind. The footer has a fixed size and all
that planning needs, so a planner reads one small block per chunk. Relations stand apart from the header
so that both sides can keep their encoded and decoded form: most chunks repeat those of the one before.

What must hold: a file that is cut anywhere, changed anywhere or written by something else is noticed:
the footer has its own checksum, one over lengths, header and relations, and the header one per piece.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from ..changes.relation import Relation
from ..errors import Refused
from ..postgres.lsn import Lsn
from .api import PAD, ChunkHeader, ChunkRef, Lineage, OpenTransaction, Piece, PieceData
from .spool import Spool

VERSION = 1
MAGIC = b"RUNNEL\x00\x01"
SLACK = 1 << 18
"""Unused bytes behind the last frame in a reader's buffer: decoding may look past a frame's end."""

_FOOTER = struct.Struct("<QQQQQqQIIIIIIQQHH8s")
# start, end, epoch, frame bytes, changes, last time, lineage id, frames, header bytes, relation bytes,
# part, parts, flags, checksum of the trailer, checksum of the footer, footer size, version, magic
_CHECKED = _FOOTER.size - 8 - 2 - 2 - 8  # the footer's checksum is over what stands before it
_SCHEMA_CHANGE = 1
_TAIL = 1 << 14
_KEPT_RELATIONS = 8192


class Source(Protocol):
    """A stored chunk file, read at any place."""

    label: str
    """What an error calls it: its full path or URL."""
    size: int

    def read_at(self, offset: int, size: int) -> bytes: ...

    def read_into(self, offset: int, target: memoryview) -> int: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Footer:
    start: Lsn
    end: Lsn
    epoch: int
    frame_bytes: int
    changes: int
    last_time: int
    lineage_id: int
    """Which subscription's log this belongs to; see `lineage_id`."""
    frames: int
    header_bytes: int
    relation_bytes: int
    part: int
    parts: int
    schema_change: bool
    checksum: int
    version: int

    def ref(self, name: str) -> ChunkRef:
        return ChunkRef(
            name,
            self.start,
            self.end,
            self.part,
            self.parts,
            self.frame_bytes,
            self.changes,
            self.last_time,
            self.schema_change,
        )


def lineage_id(lineage: Lineage) -> int:
    """A number for the subscription: its slot's name ends in its uuid. System identifier and timeline
    may change under a log (upgrade, failover); capture judges those before it appends."""
    return int(xxhash.xxh3_64_intdigest(lineage.slot.encode()))


class FileChunkWriter:
    """Fills a spool with frames, cutting pieces at frame borders. `finish` adds what describes them."""

    def __init__(self, spool: Spool, piece_bytes: int) -> None:
        self.spool = spool
        self.size = 0
        self.frames = 0
        self._limit = piece_bytes
        self._lengths: list[npt.NDArray[np.uint32]] = []
        self._resting = 0
        """Bytes of frame lengths that stand behind the frames, in the place they will have."""
        self._pieces: list[Piece] = []
        self._hash = xxhash.xxh3_64()
        self._piece_bytes = 0
        self._piece_frames = 0
        self._begun = False
        self._finished: tuple[ChunkHeader, int] | None = None

    def write(self, data: bytes | memoryview, lengths: npt.NDArray[np.int64]) -> None:
        view = memoryview(data)
        total = view.nbytes
        if int(lengths.sum()) != total:
            raise ValueError(f"{total} bytes of frames, but their lengths add up to {int(lengths.sum())}")
        if not total:
            return
        if self._resting:
            raise ValueError("a resting chunk takes no more frames")
        if not self._begun:
            self.spool.write_at(0, MAGIC)
            self._begun = True
        # Bookkeeping only after the write: a full disk leaves the writer as it was, to be tried again.
        self.spool.write_at(len(MAGIC) + self.size, view)
        self.size += total
        self.frames += len(lengths)
        self._lengths.append(lengths.astype(np.uint32))
        if self._piece_bytes + total <= self._limit:
            self._into_piece(view, len(lengths))
        else:
            self._cut(view, lengths)

    def rest(self) -> None:
        if self._lengths:
            lengths = np.concatenate(self._lengths).tobytes()
            self.spool.write_at(len(MAGIC) + self.size, lengths)
            self._resting = len(lengths)
            self._lengths.clear()

    def _into_piece(self, view: memoryview, frames: int) -> None:
        self._hash.update(view)
        self._piece_bytes += view.nbytes
        self._piece_frames += frames

    def _cut(self, view: memoryview, lengths: npt.NDArray[np.int64]) -> None:
        ends = np.cumsum(lengths)
        frame, at = 0, 0
        while frame < len(lengths):
            room = self._limit - self._piece_bytes
            until = int(np.searchsorted(ends, at + room, side="right"))
            if until <= frame:
                if self._piece_frames:
                    self._end_piece()
                    continue
                until = frame + 1  # a frame larger than a piece is a piece of its own
            stop = int(ends[until - 1])
            self._into_piece(view[at:stop], until - frame)
            frame, at = until, stop

    def _end_piece(self) -> None:
        self._pieces.append(Piece(self._piece_frames, self._piece_bytes, self._hash.intdigest()))
        self._hash.reset()
        self._piece_bytes = self._piece_frames = 0

    def finish(self, header: ChunkHeader) -> tuple[ChunkHeader, int]:
        """Write what follows the frames; returns the header as stored and the size of the file."""
        if self._finished is not None and self.spool.closed:
            return self._finished  # already in its place when an append of several parts failed
        if self._piece_frames:
            self._end_piece()
        header = replace(header, pieces=tuple(self._pieces), version=VERSION)
        if not self._begun:
            self.spool.write_at(0, MAGIC)
            self._begun = True
        if self._resting:
            lengths = self.spool.read_at(len(MAGIC) + self.size, self._resting)
        else:
            lengths = np.concatenate(self._lengths).tobytes() if self._lengths else b""
        trailer = encode_trailer(header, lengths, self.frames, self.size)
        self.spool.write_at(len(MAGIC) + self.size, trailer)
        size = len(MAGIC) + self.size + len(trailer)
        # A write that failed half way may have left bytes behind the frames that count.
        self.spool.truncate(size)
        self._finished = header, size
        return self._finished

    def discard(self) -> None:
        self.spool.discard()


def encode_trailer(header: ChunkHeader, lengths: bytes, frames: int, frame_bytes: int) -> bytes:
    relations = [_encoded(relation) for relation in header.relations]
    changed = [_encoded(relation) for _, relation in header.changed]
    transaction = header.transaction
    meta = json.dumps(
        {
            "lineage": header.lineage.to_json(),
            "first_seq": header.first_seq,
            "transaction": transaction
            and [transaction.xid, int(transaction.lsn), int(transaction.end), transaction.time],
            "streamed": header.streamed,
            "transactions": header.transactions,
            "first_time": header.first_time,
            "relations": [len(text) for text in relations],
            "changed": [
                [frame, len(text)] for (frame, _), text in zip(header.changed, changed, strict=True)
            ],
            "pieces": [[p.frames, p.bytes, p.checksum] for p in header.pieces],
        },
        separators=(",", ":"),
    ).encode()
    described = b"".join((lengths, meta, *relations, *changed))
    footer = _FOOTER.pack(
        header.start,
        header.end,
        header.epoch,
        frame_bytes,
        header.changes,
        header.last_time,
        lineage_id(header.lineage),
        frames,
        len(meta),
        len(described) - len(lengths) - len(meta),
        header.part,
        header.parts,
        _SCHEMA_CHANGE if header.schema_change else 0,
        xxhash.xxh3_64_intdigest(described),
        0,
        _FOOTER.size,
        VERSION,
        MAGIC,
    )
    checksum = struct.pack("<Q", xxhash.xxh3_64_intdigest(footer[:_CHECKED]))
    return described + footer[:_CHECKED] + checksum + footer[_CHECKED + 8 :]


def read_footer(source: Source, tail: bytes | None = None) -> Footer:
    """All that planning needs, from the last bytes of the file. `Refused` if they are not a chunk's."""
    tail = source.read_at(max(0, source.size - _FOOTER.size), _FOOTER.size) if tail is None else tail
    if source.size < len(MAGIC) + _FOOTER.size or tail[-len(MAGIC) :] != MAGIC:
        if source.size == 0 or source.read_at(0, len(MAGIC)) == MAGIC:
            raise damaged(source, "ends too early")
        raise damaged(source, "is not a chunk written by Runnel")
    footer_size, version = struct.unpack("<HH", tail[-len(MAGIC) - 4 : -len(MAGIC)])
    if version > VERSION:
        raise Refused(
            f"{source.label} has chunk format {version}; this Runnel reads up to {VERSION}",
            hint="use the Runnel version that wrote the log, or a later one",
        )
    if footer_size != _FOOTER.size or version < 1:
        raise damaged(source, "has a corrupt footer")
    fields = _FOOTER.unpack(tail[-_FOOTER.size :])
    if fields[14] != xxhash.xxh3_64_intdigest(tail[-_FOOTER.size :][:_CHECKED]):
        raise damaged(source, "has a corrupt footer")
    start, end, epoch, frame_bytes, changes, last_time, lineage = fields[:7]
    frames, header_bytes, relation_bytes, part, parts, flags, checksum = fields[7:14]
    footer = Footer(
        start=Lsn(start),
        end=Lsn(end),
        epoch=epoch,
        frame_bytes=frame_bytes,
        changes=changes,
        last_time=last_time,
        lineage_id=lineage,
        frames=frames,
        header_bytes=header_bytes,
        relation_bytes=relation_bytes,
        part=part,
        parts=parts,
        schema_change=bool(flags & _SCHEMA_CHANGE),
        checksum=checksum,
        version=version,
    )
    described = 4 * footer.frames + footer.header_bytes + footer.relation_bytes
    if source.size != len(MAGIC) + footer.frame_bytes + described + _FOOTER.size:
        raise damaged(source, "has bytes missing or added")
    return footer


class FileChunkReader:
    """One chunk, proven as far as it is read: header at once, frames piece by piece."""

    def __init__(self, source: Source) -> None:
        self._source = source
        tail = source.read_at(max(0, source.size - _TAIL), min(source.size, _TAIL))
        footer = read_footer(source, tail)
        size = 4 * footer.frames + footer.header_bytes + footer.relation_bytes
        if size + _FOOTER.size <= len(tail):
            described = tail[-size - _FOOTER.size : -_FOOTER.size]
        else:
            described = source.read_at(len(MAGIC) + footer.frame_bytes, size)
        if xxhash.xxh3_64_intdigest(described) != footer.checksum:
            raise damaged(source, "has a corrupt header")
        self._lengths = np.frombuffer(described, dtype="<u4", count=footer.frames)
        self.header = _decode_header(footer, described[4 * footer.frames :])
        self.footer = footer
        pieces = self.header.pieces
        if sum(p.frames for p in pieces) != footer.frames or sum(p.bytes for p in pieces) != (
            footer.frame_bytes
        ):
            raise damaged(source, "has a header that contradicts its footer")

    def pieces(self) -> Iterator[PieceData]:
        if not self.header.pieces:
            return
        largest = max(piece.bytes for piece in self.header.pieces)
        buffer = np.zeros(PAD + largest + SLACK, dtype=np.uint8)
        room = memoryview(buffer.data)
        at, frame = len(MAGIC), 0
        for number, piece in enumerate(self.header.pieces):
            target = room[PAD : PAD + piece.bytes]
            read = self._source.read_into(at, target)
            if read != piece.bytes or xxhash.xxh3_64_intdigest(target) != piece.checksum:
                raise damaged(
                    self._source, f"is corrupt in piece {number} (bytes {at} to {at + piece.bytes})"
                )
            offsets = np.empty(piece.frames + 1, dtype=np.int64)
            offsets[0] = PAD
            np.cumsum(self._lengths[frame : frame + piece.frames], dtype=np.int64, out=offsets[1:])
            offsets[1:] += PAD
            if offsets[-1] != PAD + piece.bytes:
                raise damaged(self._source, f"has frame lengths that contradict piece {number}")
            yield PieceData(buffer, offsets, frame)
            at += piece.bytes
            frame += piece.frames

    def close(self) -> None:
        self._source.close()

    def __enter__(self) -> FileChunkReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def damaged(source: Source, what: str) -> Refused:
    return Refused(
        f"chunk {source.label} {what}",
        hint="restore this file from a copy; or stop Runnel, move it and every later chunk out of the log "
        "and start again: what no pipeline has confirmed yet still comes from the slot. If some pipeline "
        "is past it with `ack: log`, only `runnel destroy` and a new `runnel init` are left",
    )


def _decode_header(footer: Footer, described: bytes) -> ChunkHeader:
    meta: dict[str, Any] = json.loads(described[: footer.header_bytes])
    at = footer.header_bytes
    found: list[Relation] = []
    for size in (*meta["relations"], *(size for _, size in meta["changed"])):
        found.append(_decoded(described[at : at + size]))
        at += size
    in_force = len(meta["relations"])
    frames: Sequence[int] = [frame for frame, _ in meta["changed"]]
    transaction = meta["transaction"]
    return ChunkHeader(
        lineage=Lineage.from_json(meta["lineage"]),
        epoch=footer.epoch,
        start=footer.start,
        end=footer.end,
        part=footer.part,
        parts=footer.parts,
        first_seq=meta["first_seq"],
        transaction=transaction
        and OpenTransaction(transaction[0], Lsn(transaction[1]), Lsn(transaction[2]), transaction[3]),
        streamed=meta["streamed"],
        transactions=meta["transactions"],
        changes=footer.changes,
        first_time=meta["first_time"],
        last_time=footer.last_time,
        schema_change=footer.schema_change,
        relations=tuple(found[:in_force]),
        changed=tuple(zip(frames, found[in_force:], strict=True)),
        pieces=tuple(Piece(*piece) for piece in meta["pieces"]),
        version=footer.version,
    )


# With a thousand tables in a chunk, encoding and decoding their relations anew each time would cost more
# than their rows: both sides keep what they have seen. The same object is the same text and back.
_texts: dict[int, tuple[Relation, bytes]] = {}
_relations: dict[bytes, Relation] = {}


def _encoded(relation: Relation) -> bytes:
    known = _texts.get(id(relation))
    if known is not None and known[0] is relation:
        return known[1]
    text = json.dumps(relation.to_json(), separators=(",", ":")).encode()
    if len(_texts) >= _KEPT_RELATIONS:
        _texts.clear()
    _texts[id(relation)] = (relation, text)
    return text


def _decoded(text: bytes) -> Relation:
    relation = _relations.get(text)
    if relation is None:
        relation = Relation.from_json(json.loads(text))
        if len(_relations) >= _KEPT_RELATIONS:
            _relations.clear()
        _relations[text] = relation
    return relation
