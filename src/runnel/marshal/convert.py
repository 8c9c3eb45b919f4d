"""Postgres' text of a column becomes an Arrow type that holds its values exactly.

What comes in: the texts of one column, as binary, and the type that is wanted. What goes out: values of
that type. What must hold: a value that the type cannot hold is told, never bent, also where the text was
written by another type (the column was altered): numbers lose no digit, a time is no date, only Postgres'
own t and f are booleans.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..changes.relation import Column


def converted(
    text: pa.Array, kind: pa.DataType, column: Column, bad: dict[int, str], *, foreign: bool = False
) -> pa.Array:
    """`bad` gets the rows that do not fit, which are null then, with the reason. `foreign`: the text was
    written by another type than the one that `kind` stands for."""
    convert = _exactly if foreign else _convert
    try:
        return convert(text, kind)
    except (pa.ArrowInvalid, ValueError):
        pass
    # Something does not fit: find out what, value by value, once for each distinct one.
    distinct = text.dictionary_encode()
    reasons: dict[int, str] = {}
    for index, value in enumerate(distinct.dictionary):
        try:
            convert(pa.array([value.as_py()], pa.binary()), kind)
        except (pa.ArrowInvalid, ValueError):
            shown = value.as_py().decode(errors="replace")[:60]
            what = "UTF-8" if kind == pa.string() else str(kind)
            reasons[index] = f"column {column.name!r}: {shown!r} cannot be held as {what}"
    codes: npt.NDArray[Any] = distinct.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    wrong = np.isin(codes, list(reasons))
    for row in np.flatnonzero(wrong).tolist():
        bad.setdefault(row, reasons[int(codes[row])])
    return convert(pc.if_else(pa.array(~wrong), text, pa.scalar(None, pa.binary())), kind)


def _convert(text: pa.Array, kind: pa.DataType) -> pa.Array:
    if kind == pa.binary():
        return _bytes(text)
    if kind == pa.bool_():
        yes = pc.equal(text, b"t")
        if pc.all(pc.or_(yes, pc.equal(text, b"f"))).as_py() is False:
            raise ValueError("neither t nor f")
        return yes
    text = text.cast(pa.string())  # checks that it is UTF-8
    return text if kind == pa.string() else text.cast(kind)


def _exactly(text: pa.Array, kind: pa.DataType) -> pa.Array:
    """As `_convert`, if the value written back is the one that was read: no digit lost, none made up."""
    out = _convert(text, kind)
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        distinct = text.dictionary_encode().dictionary  # a column whose type changed: seldom, so one by one
        back = _convert(distinct, kind).cast(pa.string()).to_pylist()
        for before, after in zip(distinct.to_pylist(), back, strict=True):
            if not _same_number(before.decode(), after):
                raise ValueError("it would be rounded")
        return out
    written = pa.types.is_integer(kind) or pa.types.is_date(kind)
    if written and pc.all(pc.equal(out.cast(pa.string()), text.cast(pa.string()))).as_py() is False:
        raise ValueError("it would be written otherwise")
    return out


def _same_number(one: str, other: str) -> bool:
    try:
        first, second = Decimal(one), Decimal(other)
    except InvalidOperation:
        return False
    return first == second or (first.is_nan() and second.is_nan())


def _bytes(text: pa.Array) -> pa.Array:
    r"""`\x6869` to its bytes: all hex digits of the column at once."""
    if text.null_count == len(text):
        return text
    bounds = np.frombuffer(text.buffers()[1], np.int32)[text.offset : text.offset + len(text) + 1]
    data = np.frombuffer(text.buffers()[2], np.uint8)[bounds[0] : bounds[-1]]
    bounds = bounds - bounds[0]
    there: npt.NDArray[Any] = text.is_valid().to_numpy(zero_copy_only=False)
    lengths = np.diff(bounds)[there]
    if len(lengths) and (int(lengths.min()) < 2 or (lengths & 1).any()):
        raise ValueError("not pairs of hex digits")
    begin = bounds[:-1][there]
    if (data[begin] != ord("\\")).any() or (data[begin + 1] != ord("x")).any():
        raise ValueError("not bytea's hex form")
    digits = np.ones(len(data), np.bool_)
    digits[begin] = digits[begin + 1] = False
    raw = bytes.fromhex(data[digits].tobytes().decode())
    sizes = np.where(there, (np.diff(bounds) - 2) // 2, 0)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    if len(raw) != offsets[-1]:  # fromhex passes over spaces
        raise ValueError("not pairs of hex digits")
    valid = pa.array(there).buffers()[1] if text.null_count else None
    return pa.Array.from_buffers(pa.binary(), len(text), [valid, pa.py_buffer(offsets), pa.py_buffer(raw)])
