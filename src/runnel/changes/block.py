"""The unit modifiers and sinks work on: changes of one relation and one operation, in columns.

A `Window` is about 1 MB of one chunk, decoded: its blocks together hold every change of that stretch
of the log, each with its place (`order`) in it, so that a sink may keep the order over all tables or
go table by table. Values are positions in the window's buffer (Postgres' text, untouched, no copy)
until an edge asks for more.

What must hold: `order` over all blocks of a window is a permutation of range(window.changes);
(lsn, seq) rises with it. A value is exactly one of: text, NULL, unchanged (left out by the WAL).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from .relation import Relation

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]


class Op(StrEnum):
    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    TRUNCATE = "truncate"
    MESSAGE = "message"


@dataclass(slots=True)
class Tuples:
    """One tuple per row, column by column: value k of row r is buffer[start[k][r]:end[k][r]]."""

    buffer: npt.NDArray[np.uint8]
    start: Sequence[I64]
    end: Sequence[I64]
    null: Sequence[Mask | None]
    """None: no NULL in this column."""
    unchanged: Sequence[Mask | None]
    """None: no unchanged TOAST value in this column."""
    present: tuple[int, ...]
    """Positions of the columns this tuple has at all: an old key has only the identity's."""


@dataclass(slots=True)
class Block:
    op: Op
    relation: Relation | None
    """None for a message."""
    order: I32
    transaction: I32
    """Per row: index into the window's transactions."""
    seq: I64
    new: Tuples | None = None
    old: Tuples | None = None
    """What the WAL has of the old row: the old key if it changed (or of a delete), all under FULL."""
    messages: tuple[Message, ...] = ()

    def __len__(self) -> int:
        return len(self.order)


@dataclass(frozen=True, slots=True)
class Message:
    prefix: str
    content: bytes
    transactional: bool


@dataclass(slots=True)
class Transactions:
    """The transactions a window touches, in columns."""

    lsn: I64
    """Commit LSN (of a non-transactional message: its own)."""
    xid: I64
    """-1 for a non-transactional message."""
    time: I64
    """Commit time in microseconds since 1970, UTC."""


@dataclass(slots=True)
class Window:
    changes: int
    transactions: Transactions
    blocks: list[Block]
