"""The unit modifiers and sinks work on: changes of one relation and one operation, in columns.

A `Window` is about 1 MB of one chunk, decoded: its blocks together hold every change of that stretch
of the log, each with its place (`order`) in it, so that a sink may keep the order over all tables or
go table by table. Values are positions in the window's buffer (Postgres' text, untouched, no copy)
until an edge asks for more.

What must hold: `order` over all blocks of a window is a permutation of range(window.changes);
(lsn, seq) rises with it. A value is exactly one of: text, NULL, unchanged (left out by the WAL).
A window is valid until the next one is asked for: the buffer is used again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .relation import Relation

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

TEXT, NULL, UNCHANGED = ord("t"), ord("n"), ord("u")
"""pgoutput's own letters for the kind of a value."""


class Op(StrEnum):
    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    TRUNCATE = "truncate"
    MESSAGE = "message"


@dataclass(slots=True)
class Tuples:
    """One tuple per row, in columns: value of column k in row r is buffer[slice(*places[k, r])]."""

    buffer: U8
    places: I32
    """(columns, rows, 2): start and end, equal where there is no text."""
    kinds: U8
    """(columns, rows): TEXT, NULL or UNCHANGED."""
    present: tuple[int, ...]
    """Positions of the columns this tuple has at all: an old key has only the identity's."""

    def null(self, column: int) -> Mask:
        out: Mask = self.kinds[column] == NULL
        return out

    def unchanged(self, column: int) -> Mask:
        out: Mask = self.kinds[column] == UNCHANGED
        return out

    def select(self, rows: npt.NDArray[np.intp]) -> Tuples:
        return replace(self, places=self.places[:, rows], kinds=self.kinds[:, rows])

    def column(self, column: int, type: pa.DataType | None = None) -> pa.Array:
        """Postgres' text of one column as Arrow `binary` (or `string`), a copy; NULL and unchanged
        are null: ask `unchanged` where the difference matters."""
        rows = self.kinds.shape[1]
        if not rows:
            return pa.array([], type or pa.binary())
        # A binary array whose elements alternate between values and the gaps behind them.
        offsets = pa.py_buffer(np.ascontiguousarray(self.places[column]))
        values = pa.Array.from_buffers(
            type or pa.binary(), 2 * rows - 1, [None, offsets, pa.py_buffer(self.buffer)]
        )
        absent = self.kinds[column] != TEXT
        wanted = pa.array(np.arange(0, 2 * rows, 2, dtype=np.int32), mask=absent)
        return values.take(wanted)


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
    """An unchanged value that `old` has is taken from there, so UNCHANGED means: not known."""
    old: Tuples | None = None
    """What the WAL has of the old row: the old key if it changed (or of a delete), all under FULL."""
    messages: tuple[Message, ...] = ()

    def __len__(self) -> int:
        return len(self.order)

    def select(self, rows: npt.NDArray[np.intp]) -> Block:
        """The block with only these rows, in this order."""
        return replace(
            self,
            order=self.order[rows],
            transaction=self.transaction[rows],
            seq=self.seq[rows],
            new=self.new.select(rows) if self.new is not None else None,
            old=self.old.select(rows) if self.old is not None else None,
            messages=tuple(self.messages[row] for row in rows) if self.messages else (),
        )

    def key(self) -> tuple[Tuples, tuple[int, ...]]:
        """Where a row's key stands: the tuple that has it and the columns. The primary key's values
        after the change, before a delete; if a delete's WAL lacks them, the identity's. Empty without
        a key, and for what is no row."""
        tuples = self.new if self.new is not None else self.old
        if tuples is None or self.relation is None:
            return _NOTHING, ()
        if set(self.relation.key) <= set(tuples.present):
            return tuples, self.relation.key
        return tuples, tuples.present


_NOTHING = Tuples(np.empty(0, np.uint8), np.empty((0, 0, 2), np.int32), np.empty((0, 0), np.uint8), ())


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
    """Commit time in microseconds since 1970, UTC (of a non-transactional message: when it was sent)."""


@dataclass(slots=True)
class Window:
    changes: int
    transactions: Transactions
    blocks: list[Block]
    buffer: U8
    """What all its tuples point into."""
    used: tuple[int, int]
    """The stretch of `buffer` that holds the values; the rest is free for whoever marshals."""

    def lsn(self, block: Block) -> I64:
        return self.transactions.lsn[block.transaction]

    def xid(self, block: Block) -> I64:
        return self.transactions.xid[block.transaction]

    def time(self, block: Block) -> I64:
        return self.transactions.time[block.transaction]

    def order(self) -> npt.NDArray[np.intp]:
        """Puts rows that stand block after block into commit order: row i of the output is row
        order()[i] of the blocks' rows, one after another."""
        places: npt.NDArray[np.intp] = np.empty(self.changes, np.intp)
        if self.blocks:
            places[np.concatenate([block.order for block in self.blocks])] = np.arange(self.changes)
        return places
