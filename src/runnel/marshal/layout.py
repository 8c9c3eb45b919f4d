"""How the JSON of one kind of change is put together: fixed texts, and values between them.

A layout belongs to (relation, operation, columns of the old tuple, columns not known) and is made
once: a head, and a body that tables with the same columns share. The body's texts stand between the
values; each has four forms, because a value that is NULL has no quotes: form
2 * (value before is NULL) + (value behind is NULL).

What must hold: all bodies of a sheet have the same values in the same places, so that its rows are
laid out together whatever their tables. A value that is not known is therefore among them: it is empty,
and the texts around it are as if it was not there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..changes.block import I32, Op, Sheet
from ..changes.relation import Column, Relation
from ..postgres.types import Shape
from .arrays import quote
from .values import NOTHING, codes

NEW, OLD = 0, 1
HEAD = 4
"""Pieces of a line before its first member: op to lsn, the LSN, seq, xid and time."""
MEMBERS = ("key", "before", "after", "unchanged")
LINE = ("line",)
"""Whole change, its end of line included. Other layouts are members of it: "key", "before" …"""


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """What stands behind a line's head. Tables with the same columns share one."""

    texts: bytes
    """Four forms of the text before each value and of the one behind the last."""
    lengths: bytes
    """Of each text, 32 bits."""
    source: I32
    """Per value: NEW or OLD."""
    column: I32
    codes: bytes
    """Per column of the relation, 16 bits: what has to be done with its values (see `values`)."""

    @property
    def forms(self) -> I32:
        """Per text: its first form."""
        return 4 * np.arange(len(self.column) + 1, dtype=np.int32)

    @property
    def count(self) -> int:
        """Texts, in all their forms."""
        return 4 * (len(self.column) + 1)

    def width(self, head: bool) -> int:
        """Pieces of a row."""
        return 2 * len(self.column) + 1 + (HEAD if head else 0)


class Layout(NamedTuple):
    head: bytes
    """A line's first text: operation and table."""
    body: Body


@dataclass(frozen=True, slots=True)
class _Value:
    source: int
    column: int
    quotes: bool


class _Writer:
    """Collects what stands in the JSON, in order: texts and values."""

    def __init__(self, relation: Relation, unknown: tuple[int, ...]) -> None:
        self.relation = relation
        self.unknown = unknown
        self.items: list[str | _Value] = []

    def text(self, text: str) -> None:
        self.items.append(text)

    def object(
        self, label: str, source: int, columns: tuple[int, ...], *, unless_empty: bool = False
    ) -> None:
        """`label` stands before it."""
        known = {column for column in columns if source == OLD or column not in self.unknown}
        opening = label + "{"
        for column in columns:
            of = self.relation.columns[column]
            if column in known:
                self.text(opening + quote(of.name) + ":")
                opening = ","
            self.items.append(_Value(source, column, column in known and of.type.shape is Shape.TEXT))
        if known:
            self.text("}")
        elif not unless_empty:
            self.text(opening + "}")

    def finish(self) -> Body:
        between = [""]
        values: list[_Value] = []
        for item in self.items:
            if isinstance(item, str):
                between[-1] += item
            else:
                values.append(item)
                between.append("")
        texts = []
        for number, text in enumerate(between):
            before = values[number - 1] if number else None
            behind = values[number] if number < len(values) else None
            for form in range(4):
                close = '"' if before is not None and before.quotes and not form & 2 else ""
                start = '"' if behind is not None and behind.quotes else ""
                texts.append(
                    close + text + (start if not form & 1 else "null" if behind is not None else "")
                )
        encoded = [text.encode() for text in texts]
        todo = codes(self.relation)
        todo[np.isin(np.arange(len(todo)), [value.column for value in values], invert=True)] = NOTHING
        return Body(
            b"".join(encoded),
            np.array([len(text) for text in encoded], np.int32).tobytes(),
            np.array([value.source for value in values], np.int32),
            np.array([value.column for value in values], np.int32),
            todo.tobytes(),
        )


class Kind(NamedTuple):
    """All that a layout depends on but the relation."""

    op: Op
    key: tuple[int, ...]
    """Columns, and so `before` and `after`; None: the change has none."""
    before: tuple[int, ...] | None
    after: tuple[int, ...] | None
    unknown: tuple[int, ...]
    """Columns that the new row has and the WAL does not tell."""
    what: tuple[str, ...]
    """LINE, or one member."""

    @classmethod
    def of(cls, sheet: Sheet, unknown: tuple[int, ...], what: tuple[str, ...]) -> Kind:
        before, after = (None if tuples is None else tuples.present for tuples in (sheet.old, sheet.new))
        return cls(sheet.op, sheet.key(), before, after, unknown, what)


def _head(relation: Relation, kind: Kind) -> bytes:
    if kind.what != LINE:
        return b""
    names = f'"schema":{quote(relation.schema)},"table":{quote(relation.name)}'
    return f'{{"op":"{kind.op.value}",{names},"lsn":"'.encode()


def _body(relation: Relation, kind: Kind) -> Body:
    """A member that a change does not have is empty."""
    writer = _Writer(relation, kind.unknown)
    if kind.what != LINE:
        _member(writer, kind, kind.what[0], "")
        return writer.finish()
    for name in MEMBERS:
        _member(writer, kind, name, f',"{name}":')
    writer.text("}\n")
    return writer.finish()


def _member(writer: _Writer, kind: Kind, name: str, label: str) -> None:
    if name == "key" and kind.key:
        writer.object(label, OLD if kind.after is None else NEW, kind.key, unless_empty=True)
    elif name == "before" and kind.before is not None:
        writer.object(label, OLD, kind.before)
    elif name == "after" and kind.after is not None:
        writer.object(label, NEW, kind.after)
    elif name == "unchanged" and kind.unknown:
        names = ",".join(quote(writer.relation.columns[column].name) for column in kind.unknown)
        writer.text(f"{label}[{names}]")


class Layouts:
    """Layouts made so far. A relation is mostly the same object in every chunk: found by identity, else
    by value."""

    _LIMIT = 1 << 14

    def __init__(self) -> None:
        self._made: dict[Kind, dict[int, Layout]] = {}
        self._same: dict[Relation, Relation] = {}
        self._bodies: dict[tuple[Kind, tuple[Column, ...]], Body] = {}
        self._alive: list[Relation] = []
        """All that can be found by identity: while they live, nothing else can have it."""

    def find(self, kind: Kind, relations: Iterable[Relation]) -> list[Layout]:
        if len(self._alive) > self._LIMIT:
            self.__init__()  # type: ignore[misc]
        made = self._made.setdefault(kind, {})
        return [made.get(id(relation)) or self._make(kind, made, relation) for relation in relations]

    def _make(self, kind: Kind, made: dict[int, Layout], relation: Relation) -> Layout:
        self._alive.append(relation)
        same = self._same.setdefault(relation, relation)
        layout = made.get(id(same))
        if layout is None:
            body = self._bodies.get((kind, same.columns)) or _body(same, kind)
            self._bodies[kind, same.columns] = body
            layout = Layout(_head(same, kind), body)
        made[id(same)] = made[id(relation)] = layout
        return layout
