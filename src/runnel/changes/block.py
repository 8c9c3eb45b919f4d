"""The units modifiers and sinks work on: changes in columns.

A `Window` is about 1 MB of one chunk, decoded: its sheets together hold every change of that stretch
of the log, each with its place (`order`) in it. A `Sheet` is changes of one operation whose tables have
one outline: however many tables there are, sheets are few, and what works on sheets costs the same for a
thousand tables as for one. A `Block` is changes of one table, for who goes table by table; a window's
blocks are made when somebody asks for them. Values are positions in the window's buffer (Postgres'
text, untouched, no copy) until an edge asks for more.

What must hold: `order` over all sheets (or blocks) of a window is a permutation of
range(window.changes) and rises in each of them; (lsn, seq) rises with it. A value is exactly one of:
text, NULL, unchanged (left out by the WAL).
A window is valid until the next one is asked for: the buffer is used again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

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

    def slice(self, rows: slice) -> Tuples:
        return Tuples(self.buffer, self.places[:, rows], self.kinds[:, rows], self.present)

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
    """Changes of one operation and one table (one version of it)."""

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


@dataclass(slots=True)
class Sheet:
    op: Op
    relations: Sequence[Relation]
    """Those of its rows, all of one outline; none for messages."""
    which: I32
    """Per row: index into `relations`."""
    order: I32
    transaction: I32
    seq: I64
    new: Tuples | None = None
    """As in a block, and so `old`."""
    old: Tuples | None = None
    messages: tuple[Message, ...] = ()

    def __len__(self) -> int:
        return len(self.order)

    @classmethod
    def of(cls, block: Block) -> Sheet:
        return cls(
            block.op,
            () if block.relation is None else (block.relation,),
            np.zeros(len(block), np.int32),
            block.order,
            block.transaction,
            block.seq,
            block.new,
            block.old,
            block.messages,
        )

    def select(self, rows: npt.NDArray[np.intp]) -> Sheet:
        """The sheet with only these rows, in this order."""
        return replace(
            self,
            which=self.which[rows],
            order=self.order[rows],
            transaction=self.transaction[rows],
            seq=self.seq[rows],
            new=self.new.select(rows) if self.new is not None else None,
            old=self.old.select(rows) if self.old is not None else None,
            messages=tuple(self.messages[row] for row in rows) if self.messages else (),
        )

    def blocks(self) -> list[Block]:
        """Its rows table by table."""
        sheet: Sheet = self
        if len(self.relations) > 1:
            sheet = self.select(np.argsort(self.which, kind="stable"))
        ends = np.cumsum(np.bincount(self.which, minlength=max(len(self.relations), 1))).tolist()
        out, start = [], 0
        for relation, end in zip(self.relations or (None,), ends, strict=True):
            here, start = slice(start, end), end
            if here.start == end:
                continue
            out.append(
                Block(
                    sheet.op,
                    relation,
                    sheet.order[here],
                    sheet.transaction[here],
                    sheet.seq[here],
                    sheet.new.slice(here) if sheet.new is not None else None,
                    sheet.old.slice(here) if sheet.old is not None else None,
                    sheet.messages,
                )
            )
        return out

    def key(self) -> tuple[int, ...]:
        """The columns of a row's key, in its new tuple if it has one: the primary key's values after
        the change, before a delete; if a delete's WAL lacks them, the identity's. Empty without a key,
        and for what is no row."""
        tuples = self.new if self.new is not None else self.old
        if tuples is None or not self.relations:
            return ()
        key = self.relations[0].key
        return key if set(key) <= set(tuples.present) else tuples.present


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
    sheets: list[Sheet]
    buffer: U8
    """What all its tuples point into."""
    used: tuple[int, int]
    """The stretch of `buffer` that holds the values; the rest is free for whoever marshals."""
    _blocks: list[Block] | None = field(default=None, init=False, repr=False)

    @property
    def blocks(self) -> list[Block]:
        """Every change, apart by table (its version) and operation."""
        if self._blocks is None:
            self._blocks = [block for sheet in self.sheets for block in sheet.blocks()]
        return self._blocks

    def lsn(self, rows: Block | Sheet) -> I64:
        return self.transactions.lsn[rows.transaction]

    def xid(self, rows: Block | Sheet) -> I64:
        return self.transactions.xid[rows.transaction]

    def time(self, rows: Block | Sheet) -> I64:
        return self.transactions.time[rows.transaction]

    def select(self, places: npt.NDArray[np.integer[Any]]) -> Window:
        """The window with only the changes at these places of its order, which rise; gaps close up."""
        sheets = []
        for sheet in self.sheets:
            rows = np.flatnonzero(np.isin(sheet.order, places))
            if len(rows):
                kept = sheet.select(rows)
                sheets.append(replace(kept, order=np.searchsorted(places, kept.order).astype(np.int32)))
        return replace(self, changes=len(places), sheets=sheets)

    def order(self) -> npt.NDArray[np.intp]:
        """Puts rows that stand sheet after sheet into commit order: row i of the output is row
        order()[i] of the sheets' rows, one after another."""
        places: npt.NDArray[np.intp] = np.empty(self.changes, np.intp)
        if self.sheets:
            places[np.concatenate([sheet.order for sheet in self.sheets])] = np.arange(self.changes)
        return places
