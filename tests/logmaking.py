"""Chunks for tests: small frames with the shape of XLogData, and a log of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from runnel.changes.relation import Column, Relation
from runnel.log.api import FRAME_HEAD, PAD, ChangeLog, ChunkHeader, ChunkReader, Filled, Lineage
from runnel.postgres.lsn import Lsn
from runnel.postgres.types import ColumnType, Shape

LINEAGE = Lineage("7400000000000000001", 1, "shop_1f2e3d4c")
USERS = Relation(
    16384,
    "public",
    "users",
    "d",
    (
        Column("id", ColumnType(23, "int4", Shape.NUMBER), -1, True),
        Column("Ünï\"'", ColumnType(25, "text", Shape.TEXT), -1, False),
    ),
    (0,),
)


def frame(message: bytes, lsn: int = 1) -> bytes:
    head = b"w" + lsn.to_bytes(8, "big") + lsn.to_bytes(8, "big") + (0).to_bytes(8, "big")
    assert len(head) == FRAME_HEAD
    return head + message


def header(start: int, end: int, **fields: Any) -> ChunkHeader:
    base = ChunkHeader(lineage=LINEAGE, epoch=7, start=Lsn(start), end=Lsn(end), relations=(USERS,))
    return replace(base, **fields)


def filled(log: ChangeLog, head: ChunkHeader, frames: Sequence[bytes]) -> Filled:
    writer = log.writer()
    if frames:
        writer.write(b"".join(frames), np.array([len(f) for f in frames], dtype=np.int64))
    return Filled(writer, replace(head, changes=len(frames)))


def append(log: ChangeLog, start: int, end: int, *messages: bytes, **fields: Any) -> None:
    log.append([filled(log, header(start, end, **fields), [frame(m, end) for m in messages])])


def messages(reader: ChunkReader) -> list[bytes]:
    out: list[bytes] = []
    for piece in reader.pieces():
        edges = piece.offsets.tolist()
        assert edges[0] == PAD
        assert piece.first_frame == len(out)
        out += [piece.buffer[a + FRAME_HEAD : b].tobytes() for a, b in itertools.pairwise(edges)]
    reader.close()
    return out


def contents(log: ChangeLog, after: int) -> list[bytes]:
    return [m for ref in log.chunks(Lsn(after)) for m in messages(log.open(ref.name))]
