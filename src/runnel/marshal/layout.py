"""How the JSON of one kind of change is put together: fixed texts, and values between them.

A layout belongs to (relation, operation, columns of the old tuple, columns not known) and is made
once. Its texts stand between the values; each has four forms, because a value that is NULL has no
quotes: form 2 * (value before is NULL) + (value behind is NULL).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..changes.block import I32, Block, Op
from ..changes.relation import Relation
from ..postgres.types import Shape
from .arrays import quote
from .values import codes

NEW, OLD = 0, 1
HEAD = 4
"""Pieces of a line before its first member: op to lsn, the LSN, seq, xid and time."""
LINE = ("line",)
"""Whole change, its end of line included. Other layouts are members of it: "key", "before" …"""


@dataclass(slots=True)
class Layout:
    texts: bytes
    """The head's text, then four forms of the text before each value and of the one behind the last."""
    lengths: I32
    source: I32
    """Per value: NEW or OLD."""
    column: I32
    forms: I32
    """Per text between values: its first form, counted from the head's text."""

    def width(self, head: bool) -> int:
        """Pieces of a row."""
        return 2 * len(self.column) + 1 + (HEAD if head else 0)


@dataclass(frozen=True, slots=True)
class _Value:
    source: int
    column: int
    quotes: bool


class _Writer:
    """Collects what stands in the JSON, in order: texts and values."""

    def __init__(self, relation: Relation | None) -> None:
        self.relation = relation
        self.items: list[str | _Value] = []

    def text(self, text: str) -> None:
        self.items.append(text)

    def object(self, source: int, columns: tuple[int, ...]) -> None:
        assert self.relation is not None  # noqa: S101 - only rows have objects
        self.text("{")
        for number, column in enumerate(columns):
            of = self.relation.columns[column]
            self.text(("," if number else "") + quote(of.name) + ":")
            self.items.append(_Value(source, column, of.type.shape is Shape.TEXT))
        self.text("}")

    def finish(self, head: str) -> Layout:
        between = [""]
        values: list[_Value] = []
        for item in self.items:
            if isinstance(item, str):
                between[-1] += item
            else:
                values.append(item)
                between.append("")
        texts = [head]
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
        return Layout(
            b"".join(encoded),
            np.array([len(text) for text in encoded], np.int32),
            np.array([value.source for value in values], np.int32),
            np.array([value.column for value in values], np.int32),
            1 + 4 * np.arange(len(between), dtype=np.int32),
        )


def members(block: Block, unknown: tuple[int, ...]) -> tuple[str, ...]:
    """Which of key, before, after and unchanged a change of this block has."""
    key = [column for column in block.key()[1] if column not in unknown]
    has = {
        "key": bool(key),
        "before": block.old is not None,
        "after": block.new is not None,
        "unchanged": bool(unknown),
    }
    return tuple(name for name, there in has.items() if there)


def make(block: Block, unknown: tuple[int, ...], what: tuple[str, ...]) -> Layout:
    """The layout of `what`: LINE, or one member that the block has."""
    writer = _Writer(block.relation)
    if what != LINE:
        _member(writer, block, unknown, what[0])
        return writer.finish("")
    for name in members(block, unknown):
        writer.text(f',"{name}":')
        _member(writer, block, unknown, name)
    writer.text("}\n")
    return writer.finish(_head(block.op, block.relation))


def _head(op: Op, relation: Relation | None) -> str:
    if relation is None:
        return f'{{"op":"{op.value}","lsn":"'
    names = f'"schema":{quote(relation.schema)},"table":{quote(relation.name)}'
    return f'{{"op":"{op.value}",{names},"lsn":"'


def _member(writer: _Writer, block: Block, unknown: tuple[int, ...], name: str) -> None:
    new, old, relation = block.new, block.old, block.relation
    source = NEW if new is not None else OLD
    if name == "key":
        writer.object(source, tuple(column for column in block.key()[1] if column not in unknown))
    elif name == "before" and old is not None:
        writer.object(OLD, old.present)
    elif name == "after" and new is not None:
        writer.object(NEW, tuple(column for column in new.present if column not in unknown))
    elif name == "unchanged" and relation is not None:
        writer.text("[" + ",".join(quote(relation.columns[column].name) for column in unknown) + "]")


class Layouts:
    """Layouts made so far. Relations come anew with every chunk: found by identity, else by value."""

    _LIMIT = 4096

    def __init__(self) -> None:
        self._same: dict[int, tuple[Relation, int]] = {}
        self._number: dict[Relation, int] = {}
        self._codes: dict[int, npt.NDArray[np.uint16]] = {}
        self._made: dict[tuple[object, ...], Layout] = {}

    def find(self, block: Block, unknown: tuple[int, ...], what: tuple[str, ...]) -> Layout:
        relation = block.relation
        number = -1 if relation is None else self.number(relation)
        old = None if block.old is None else block.old.present
        key = (number, block.op, block.new is None, old, unknown, what)
        layout = self._made.get(key)
        if layout is None:
            layout = self._made[key] = make(block, unknown, what)
        return layout

    def codes(self, relation: Relation) -> npt.NDArray[np.uint16]:
        number = self.number(relation)
        found = self._codes.get(number)
        if found is None:
            found = self._codes[number] = codes(relation)
        return found

    def number(self, relation: Relation) -> int:
        known = self._same.get(id(relation))
        if known is not None and known[0] is relation:
            return known[1]
        if len(self._same) > self._LIMIT or len(self._made) > self._LIMIT:
            self.__init__()  # type: ignore[misc]
        number = self._number.setdefault(relation, len(self._number))
        self._same[id(relation)] = (relation, number)
        return number
