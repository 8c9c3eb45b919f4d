"""Windows without a server: changes as plain Python in, the decoder's columns out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from runnel.changes.block import NULL, TEXT, Block, Message, Op, Sheet, Transactions, Tuples, Window
from runnel.changes.block import UNCHANGED as ABSENT
from runnel.changes.relation import Column, Relation
from runnel.log.api import PAD
from runnel.postgres.types import BUILTIN, ColumnType, Shape, builtin

UNCHANGED = object()
TIME = 1_700_000_000_000_000


def relation(
    name: str = "items",
    columns: Mapping[str, str] | None = None,
    *,
    schema: str = "public",
    key: Sequence[int] = (0,),
    identity: Sequence[int] | None = None,
    typmods: Mapping[str, int] | None = None,
) -> Relation:
    columns = columns or {"id": "int4", "note": "text"}
    return Relation(
        oid=1000 + sum(map(ord, schema + name)) % 9999,
        schema=schema,
        name=name,
        identity="d" if identity is None else "i",
        columns=tuple(
            Column(
                column,
                _type(kind),
                (typmods or {}).get(column, -1),
                at in (key if identity is None else identity),
            )
            for at, (column, kind) in enumerate(columns.items())
        ),
        key=tuple(key),
    )


def _type(name: str) -> ColumnType:
    known = builtin(BUILTIN.get(name, 0))
    return known or ColumnType(100_000, name, Shape.TEXT)


ITEMS = relation()


@dataclass(frozen=True)
class Change:
    op: Op
    relation: Relation | None
    new: tuple[object, ...] | None = None
    old: tuple[object, ...] | None = None
    """Only the replica identity's columns, unless it is as long as the table is wide."""
    message: Message | None = None


@dataclass(frozen=True)
class Transaction:
    lsn: int
    changes: tuple[Change, ...]
    first_seq: int = 0

    @property
    def end(self) -> int:
        return self.lsn + 8


def insert(*values: object, into: Relation = ITEMS) -> Change:
    return Change(Op.INSERT, into, new=values)


def update(*values: object, of: Relation = ITEMS, old: tuple[object, ...] | None = None) -> Change:
    return Change(Op.UPDATE, of, new=values, old=old)


def delete(*key: object, of: Relation = ITEMS) -> Change:
    return Change(Op.DELETE, of, old=key)


def truncate(of: Relation = ITEMS) -> Change:
    return Change(Op.TRUNCATE, of)


def message(prefix: str, content: bytes) -> Change:
    return Change(Op.MESSAGE, None, message=Message(prefix, content, transactional=True))


def window(*transactions: Transaction) -> Window:
    buffer = bytearray(PAD)
    groups: dict[tuple[Op, Relation | None, int], list[tuple[int, int, int, Change]]] = {}
    order = 0
    for at, transaction in enumerate(transactions):
        for seq, change in enumerate(transaction.changes, transaction.first_seq):
            kind = (change.op, change.relation, len(change.old or ()))
            groups.setdefault(kind, []).append((order, at, seq, change))
            order += 1
    blocks = []
    pending = []
    for (op, table, old_width), rows in groups.items():
        block = Block(
            op,
            table,
            np.array([r[0] for r in rows], np.int32),
            np.array([r[1] for r in rows], np.int32),
            np.array([r[2] for r in rows], np.int64),
            messages=tuple(r[3].message for r in rows if r[3].message is not None),
        )
        if table is not None and op in (Op.INSERT, Op.UPDATE):
            every = tuple(range(len(table.columns)))
            pending.append((block, "new", [r[3].new or () for r in rows], every))
        if table is not None and old_width:
            full = old_width == len(table.columns)
            present = tuple(range(len(table.columns))) if full else table.outline.identity
            pending.append((block, "old", [r[3].old or () for r in rows], present))
        blocks.append(block)
    placed = [
        (block, name, _tuples(rows, present, block.relation, buffer))
        for block, name, rows, present in pending
    ]
    used = (PAD, len(buffer))
    buffer.extend(bytes(64))
    data = np.frombuffer(buffer, np.uint8)
    for block, name, tuples in placed:
        tuples.buffer = data
        setattr(block, name, tuples)
    return Window(
        order,
        Transactions(
            np.array([t.lsn for t in transactions], np.int64),
            np.array([700 + (t.lsn >> 8) for t in transactions], np.int64),
            np.array([TIME + t.lsn for t in transactions], np.int64),
        ),
        [Sheet.of(block) for block in blocks],
        data,
        used,
    )


def _tuples(
    rows: Sequence[tuple[object, ...]],
    present: tuple[int, ...],
    table: Relation | None,
    buffer: bytearray,
) -> Tuples:
    assert table is not None
    width = len(table.columns)
    places = np.zeros((width, len(rows), 2), np.int32)
    kinds = np.full((width, len(rows)), NULL, np.uint8)
    for r, row in enumerate(rows):
        for column, value in zip(present, row, strict=True):
            buffer.extend(b"tXXXX")  # where the wire has a kind and a length
            kinds[column, r] = NULL if value is None else ABSENT if value is UNCHANGED else TEXT
            begin = len(buffer)
            if kinds[column, r] == TEXT:
                buffer.extend(value if isinstance(value, bytes) else str(value).encode())
            places[column, r] = begin, len(buffer)
    return Tuples(np.empty(0, np.uint8), places, kinds, present)
