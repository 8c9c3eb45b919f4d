"""Values whose JSON is not Postgres' text: booleans, NaN, json, arrays, and text to be escaped.

Works on all values of one kind in a window together, whatever their tables, and only changes where
an element of the `Space` points to. What needs Python runs once per distinct value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..changes.block import U8
from ..changes.relation import Relation
from ..postgres.types import BUILTIN, ColumnType, Shape
from .arrays import array_to_json, quote
from .space import Gathered, Space

Elements = npt.NDArray[Any]

# Built-in types whose text has nothing to escape. By oid: a user's type may have any name.
_PLAIN = frozenset(
    (27, 28, 29, 650, 774, 829, 869, 1082, 1083, 1114, 1184, 1186, 1266, 1560, 1562, 2950, 3220, 5069)
)
_TRANSLATED = np.arange(256, dtype=np.uint8)
_TRANSLATED[np.frombuffer(b"{}NUL", np.uint8)] = np.frombuffer(b"[]nul", np.uint8)
_SHORT = np.zeros(256, np.uint8)
"""The letter behind the backslash, for what JSON can write in two."""
_SHORT[np.frombuffer(b'\\"\n\t\r\b\f', np.uint8)] = np.frombuffer(b'\\"ntrbf', np.uint8)

# What has to be done with a value.
NOTHING, TEXT, BOOLEAN, INEXACT, JSON, SINGLE_BYTE = range(6)
_FIRST_ARRAY = 16
_array_types: list[ColumnType] = []
"""Array type i has the code _FIRST_ARRAY + i."""


def _code(type: ColumnType) -> int:
    if type.shape is Shape.ARRAY:
        if type not in _array_types:
            _array_types.append(type)
        return _FIRST_ARRAY + _array_types.index(type)
    if type.shape is Shape.BOOLEAN:
        return BOOLEAN
    if type.shape is Shape.NUMBER:  # the inexact ones may be NaN or infinite
        return INEXACT if type.name in ("float4", "float8", "numeric") else NOTHING
    if type.shape is Shape.JSON:  # jsonb never has a newline between its tokens
        return JSON if type.name != "jsonb" else NOTHING
    if type.base == BUILTIN["char"]:  # before PostgreSQL 16 it may hold any byte
        return SINGLE_BYTE
    return NOTHING if type.oid in _PLAIN else TEXT


def codes(relation: Relation) -> npt.NDArray[np.uint16]:
    """Per column of a relation: what has to be done with its values."""
    return np.array([_code(column.type) for column in relation.columns], np.uint16)


def rewrite(space: Space) -> None:
    """Give every value in the space the text it has in JSON."""
    for code in np.flatnonzero(np.bincount(space.codes)).tolist():
        if code == NOTHING:
            continue
        elements = space.values + 2 * np.flatnonzero(space.codes == code)
        # NULL and unchanged have no text and need nothing, nor does ''.
        there = space.offsets[elements + 1] > space.offsets[elements]
        if not there.all():
            elements = elements[there]
        if not len(elements):
            continue
        if code >= _FIRST_ARRAY:
            _arrays(space, elements, _array_types[code - _FIRST_ARRAY])
        else:
            _WORK[code](space, elements)


def _point(space: Space, elements: Elements, constant: str) -> None:
    space.offsets[elements], space.offsets[elements + 1] = space.constant[constant]


def _booleans(space: Space, elements: Elements) -> None:
    true = space.window.buffer[space.offsets[elements]] == ord("t")
    _point(space, elements[true], "true")
    _point(space, elements[~true], "false")


def _not_finite(space: Space, elements: Elements) -> None:
    buffer = space.window.buffer
    odd = buffer[space.offsets[elements + 1] - 1] > ord("9")  # NaN, Infinity and -Infinity end in letters
    if not odd.any():
        return
    elements = elements[odd]
    first = buffer[space.offsets[elements]]
    _point(space, elements[first == ord("N")], '"NaN"')
    _point(space, elements[first == ord("I")], '"Infinity"')
    _point(space, elements[first == ord("-")], '"-Infinity"')


def _hit(found: Gathered, hits: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
    """Which of the gathered values contain a hit (true per byte)."""
    value = np.searchsorted(found.relative, np.flatnonzero(hits), side="right") - 1
    return value[np.flatnonzero(np.diff(value, prepend=-1))]


def _newlines(space: Space, elements: Elements) -> None:
    """Valid json has raw newlines only between tokens: spaces say the same and keep it on one line."""
    found = space.gather(elements)
    hits = (found.bytes == ord("\n")) | (found.bytes == ord("\r"))
    if not hits.any():
        return
    chosen = _hit(found, hits)
    values = Gathered(found.array.take(pa.array(chosen)))
    data = values.bytes.copy()
    data[(data == ord("\n")) | (data == ord("\r"))] = ord(" ")
    space.replace(elements[chosen], values.relative, data)


def _escape(space: Space, elements: Elements) -> None:
    found = space.gather(elements)
    hits = _to_escape(found.bytes)
    if not hits.any():
        return
    chosen = _hit(found, hits)
    values = found.array.take(pa.array(chosen))
    if not _SHORT[found.bytes[hits]].all():  # other control characters: six letters, and rare
        out = _distinct(values, lambda value: quote(value.decode())[1:-1])
        space.replace(elements[chosen], out.relative, out.bytes)
        return
    # A backslash goes in before each hit, which may become another letter.
    plain = Gathered(values)
    at = np.flatnonzero(_to_escape(plain.bytes))
    slashes = at + np.arange(len(at))
    data = np.empty(len(plain.bytes) + len(at), np.uint8)
    own = np.ones(len(data), np.bool_)
    own[slashes] = False
    data[slashes] = ord("\\")
    data[own] = plain.bytes
    data[slashes + 1] = _SHORT[plain.bytes[at]]
    offsets = plain.relative + np.searchsorted(at, plain.relative)
    space.replace(elements[chosen], offsets, data)


def _to_escape(data: U8) -> npt.NDArray[np.bool_]:
    out: npt.NDArray[np.bool_] = (data < 32) | (data == ord('"')) | (data == ord("\\"))
    return out


def _single_bytes(space: Space, elements: Elements) -> None:
    """A byte that is no UTF-8 by itself is written as PostgreSQL 16 and later do: `\\377`."""

    def text(value: bytes) -> str:
        return f"\\{value[0]:03o}" if len(value) == 1 and value[0] > 127 else value.decode()

    out = _distinct(space.gather(elements).array, lambda value: quote(text(value))[1:-1])
    space.replace(elements, out.relative, out.bytes)


def _distinct(values: pa.Array, function: Callable[[bytes], str]) -> Gathered:
    """A Python function, called once for each distinct value."""
    coded = values.dictionary_encode()
    answers = [function(value).encode() for value in coded.dictionary.to_pylist()]
    return Gathered(pa.array(answers, values.type).take(coded.indices))


def _arrays(space: Space, elements: Elements, type: ColumnType) -> None:
    element, delimiter = type.element, type.delimiter
    if element is None:
        return
    if element.shape is Shape.NUMBER:
        elements = _number_arrays(space, elements)
    if len(elements):
        out = _distinct(
            space.gather(elements).array, lambda value: array_to_json(value.decode(), element, delimiter)
        )
        space.replace(elements, out.relative, out.bytes)


def _number_arrays(space: Space, elements: Elements) -> Elements:
    """Numbers and NULLs become JSON letter by letter: `{1,NULL}` and `[1,null]` have one length. Gives
    back those that do not: with explicit bounds, NaN or an infinity."""
    found = space.gather(elements)
    odd = (found.bytes == ord("=")) | (found.bytes == ord("a")) | (found.bytes == ord("y"))
    slow = elements[:0]
    if odd.any():
        rest = np.zeros(len(elements), np.bool_)
        rest[_hit(found, odd)] = True
        slow, elements = elements[rest], elements[~rest]
        found = space.gather(elements)
    space.replace(elements, found.relative, _TRANSLATED[found.bytes])
    return slow


_WORK: dict[int, Callable[[Space, Elements], None]] = {
    TEXT: _escape,
    BOOLEAN: _booleans,
    INEXACT: _not_finite,
    JSON: _newlines,
    SINGLE_BYTE: _single_bytes,
}
