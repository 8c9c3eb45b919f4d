"""Changes of one table with typed columns: windows in, Arrow record batches out.

A column's Postgres text becomes the Arrow type that holds all its values exactly; where there is none
(numeric without a precision, intervals, arrays, json …) it stays text. A value that its type cannot
hold (a BC date, infinity, NaN in a decimal) is never bent: the row is left out and told as `Misfit`.

Beside the table's own columns: `_op`, `_lsn` (a number, so that it sorts), `_seq`, `_commit_time`,
`_unchanged`, the names of columns that the WAL left out: null there does not mean NULL, and `_before`,
what the WAL has of the row before an update as JSON (the old key if it changed). A delete has
the columns that the WAL has of the old row, a truncate none. A table that has a column of such a name
itself makes all of them begin with one more underscore.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..changes.block import I32, I64, Block, Tuples, Window
from ..changes.relation import Column, Relation
from .json import member
from .stamps import lsn_stamps

_BY_NAME = {
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "oid": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "bool": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "bytea": pa.binary(),
}
_META = {
    "_op": pa.string(),
    "_lsn": pa.int64(),
    "_seq": pa.int64(),
    "_commit_time": pa.timestamp("us", "UTC"),
    "_unchanged": pa.list_(pa.string()),
    "_before": pa.string(),
}
_MOST_DIGITS = 38


@dataclass(frozen=True, slots=True)
class Misfit:
    """A row that the types cannot hold."""

    order: int
    """Its place in the window."""
    reason: str


@dataclass(slots=True)
class TypedRows:
    relation: Relation
    rows: pa.RecordBatch
    """In commit order, without the misfits."""
    misfits: list[Misfit]


def arrow_type(column: Column) -> pa.DataType:
    if column.type.name == "numeric":
        return _decimal(column.typmod)
    return _BY_NAME.get(column.type.name, pa.string())


def _decimal(typmod: int) -> pa.DataType:
    precision, scale = (typmod - 4) >> 16 & 0xFFFF, (typmod - 4) & 0x7FF
    # The scale has eleven bits with a sign since 15: a negative one, or digits only behind the point.
    if typmod < 4 or precision > _MOST_DIGITS or scale > precision:
        return pa.string()
    return pa.decimal128(precision, scale)


def arrow_schema(relation: Relation) -> pa.Schema:
    """The types of `typed`, for one version of a relation."""
    fields = [
        pa.field(name, kind) for name, kind in zip(_meta_names(relation), _META.values(), strict=True)
    ]
    return pa.schema(fields + [pa.field(c.name, arrow_type(c)) for c in relation.columns])


def _meta_names(relation: Relation) -> list[str]:
    taken = {column.name for column in relation.columns}
    names = list(_META)
    while not taken.isdisjoint(names):
        names = ["_" + name for name in names]
    return names


def typed(window: Window) -> Iterator[TypedRows]:
    """The window's rows, apart for each version of each table. Messages are not rows of a table."""
    for relation, blocks in _groups(window):
        bad: dict[int, str] = {}
        arrays = _meta(window, relation, blocks)
        for number, column in enumerate(relation.columns):
            arrays.append(_converted(_texts(blocks, number), arrow_type(column), column, bad))
        rows = pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(relation))
        order = np.concatenate([block.order for block in blocks])
        misfits = [Misfit(int(order[row]), reason) for row, reason in sorted(bad.items())]
        yield TypedRows(relation, _sorted(rows, order, np.fromiter(bad, np.intp)), misfits)


def texts(window: Window) -> Iterator[tuple[Relation, pa.RecordBatch]]:
    """The same with Postgres' own text in every column, `_lsn` as Postgres writes it, and `_unchanged`
    as a JSON array. No value can be a misfit."""
    for relation, blocks in _groups(window):
        arrays = _meta(window, relation, blocks)
        which = np.concatenate([block.transaction for block in blocks])
        arrays[1] = _lsn_texts(window.transactions.lsn).take(pa.array(which))
        arrays[4] = _each_distinct(arrays[4], lambda names: json.dumps(names, ensure_ascii=False))
        arrays += [_texts(blocks, number) for number in range(len(relation.columns))]
        names = [*_meta_names(relation), *(column.name for column in relation.columns)]
        rows = pa.RecordBatch.from_arrays(arrays, names=names)
        order = np.concatenate([block.order for block in blocks])
        yield relation, _sorted(rows, order, np.empty(0, np.intp))


def _groups(window: Window) -> Iterator[tuple[Relation, list[Block]]]:
    groups: dict[Relation, list[Block]] = {}
    for block in window.blocks:
        if block.relation is not None and len(block):
            groups.setdefault(block.relation, []).append(block)
    yield from groups.items()


def _meta(window: Window, relation: Relation, blocks: Sequence[Block]) -> list[pa.Array]:
    return [
        _repeated([block.op.value for block in blocks], blocks),
        pa.array(np.concatenate([window.lsn(block) for block in blocks])),
        pa.array(np.concatenate([block.seq for block in blocks])),
        pa.array(np.concatenate([window.time(block) for block in blocks])).cast(_META["_commit_time"]),
        _unchanged(relation, blocks),
        pa.concat_arrays([_before(window, block) for block in blocks]),
    ]


def _sorted(rows: pa.RecordBatch, order: I32, without: npt.NDArray[np.intp]) -> pa.RecordBatch:
    place = np.argsort(order)
    if len(without):
        place = place[np.isin(place, without, invert=True)]
    elif bool((place[1:] > place[:-1]).all()):
        return rows
    return rows.take(pa.array(place))


def _lsn_texts(lsn: I64) -> pa.Array:
    stamps = lsn_stamps(lsn, "")
    ends = (np.arange(len(lsn)) + 1) * stamps.width
    places = np.stack([ends - stamps.width + stamps.start, ends], axis=1).astype(np.int32)
    # Elements alternate between the texts and the gaps between them.
    buffers = [None, pa.py_buffer(np.ascontiguousarray(places)), pa.py_buffer(stamps.text.ravel())]
    pairs = pa.Array.from_buffers(pa.string(), max(2 * len(lsn) - 1, 0), buffers)
    return pairs.take(pa.array(np.arange(0, 2 * len(lsn), 2)))


def _each_distinct(lists: pa.Array, text: Callable[[list[str]], str]) -> pa.Array:
    if lists.null_count == len(lists):
        return pa.nulls(len(lists), pa.string())
    found: dict[tuple[str, ...], str] = {}
    out = []
    for value in lists.to_pylist():  # rows of this table in a window that has unchanged TOAST values
        out.append(None if value is None else found.setdefault(tuple(value), text(value)))
    return pa.array(out, pa.string())


def _repeated(values: Sequence[Any], blocks: Sequence[Block]) -> pa.Array:
    which = np.repeat(np.arange(len(blocks)), [len(block) for block in blocks])
    return pa.array(values, pa.string()).take(pa.array(which))


def _source(block: Block) -> Tuples | None:
    return block.new if block.new is not None else block.old


def _texts(blocks: Sequence[Block], column: int) -> pa.Array:
    return pa.concat_arrays([_text(block, column) for block in blocks])


def _text(block: Block, column: int) -> pa.Array:
    tuples = _source(block)
    if tuples is None or column not in tuples.present:
        return pa.nulls(len(block), pa.binary())
    return tuples.column(column)


def _unchanged(relation: Relation, blocks: Sequence[Block]) -> pa.Array:
    """Few rows have any: one list for each distinct pattern of columns."""
    parts = []
    kind = _META["_unchanged"]
    for block in blocks:
        masks = None if block.new is None else np.array([block.new.unchanged(c) for c in block.new.present])
        if masks is None or not masks.any():
            parts.append(pa.nulls(len(block), kind))
            continue
        patterns, which = np.unique(masks, axis=1, return_inverse=True)
        names = [
            [relation.columns[c].name for c in np.flatnonzero(patterns[:, p])] or None
            for p in range(patterns.shape[1])
        ]
        parts.append(pa.array(names, kind).take(pa.array(which.ravel())))
    return pa.concat_arrays(parts)


def _before(window: Window, block: Block) -> pa.Array:
    if block.new is None or block.old is None:
        return pa.nulls(len(block), pa.string())
    return member(window, block, "before").cast(pa.string())


def _converted(text: pa.Array, kind: pa.DataType, column: Column, bad: dict[int, str]) -> pa.Array:
    try:
        return _convert(text, kind)
    except (pa.ArrowInvalid, ValueError):
        pass
    # Something does not fit: find out what, value by value, once for each distinct one.
    distinct = text.dictionary_encode()
    reasons: dict[int, str] = {}
    for index, value in enumerate(distinct.dictionary):
        try:
            _convert(pa.array([value.as_py()], pa.binary()), kind)
        except (pa.ArrowInvalid, ValueError):
            shown = value.as_py().decode(errors="replace")[:60]
            what = "UTF-8" if kind == pa.string() else str(kind)
            reasons[index] = f"column {column.name!r}: {shown!r} cannot be held as {what}"
    codes: npt.NDArray[Any] = distinct.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    wrong = np.isin(codes, list(reasons))
    for row in np.flatnonzero(wrong).tolist():
        bad.setdefault(row, reasons[int(codes[row])])
    return _convert(pc.if_else(pa.array(~wrong), text, pa.scalar(None, pa.binary())), kind)


def _convert(text: pa.Array, kind: pa.DataType) -> pa.Array:
    if kind == pa.binary():
        return _bytes(text)
    if kind == pa.bool_():
        return pc.equal(text, b"t")
    text = text.cast(pa.string())  # checks that it is UTF-8
    return text if kind == pa.string() else text.cast(kind)


def _bytes(text: pa.Array) -> pa.Array:
    r"""`\x6869` to its bytes: all hex digits of the column at once."""
    if text.null_count == len(text):
        return text
    bounds = np.frombuffer(text.buffers()[1], np.int32)[text.offset : text.offset + len(text) + 1]
    data = np.frombuffer(text.buffers()[2], np.uint8)[bounds[0] : bounds[-1]]
    bounds = bounds - bounds[0]
    there: npt.NDArray[Any] = text.is_valid().to_numpy(zero_copy_only=False)
    digits = np.ones(len(data), np.bool_)
    digits[bounds[:-1][there]] = digits[bounds[:-1][there] + 1] = False
    raw = bytes.fromhex(data[digits].tobytes().decode())
    sizes = np.where(there, (np.diff(bounds) - 2) // 2, 0)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    valid = pa.array(there).buffers()[1] if text.null_count else None
    return pa.Array.from_buffers(pa.binary(), len(text), [valid, pa.py_buffer(offsets), pa.py_buffer(raw)])


def messages(window: Window) -> pa.RecordBatch:
    """The window's logical messages, in order: few, so one by one."""
    rows = []
    for block in window.blocks:
        if block.relation is None:
            columns = (block.order, window.lsn(block), block.seq, window.time(block), block.messages)
            rows += list(zip(*columns, strict=True))
    rows.sort(key=lambda row: row[0])
    told = [row[4] for row in rows]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(["message"] * len(rows), pa.string()),
            pa.array([int(row[1]) for row in rows], pa.int64()),
            pa.array([int(row[2]) for row in rows], pa.int64()),
            pa.array([int(row[3]) for row in rows], pa.timestamp("us", "UTC")),
            pa.array([message.prefix for message in told], pa.string()),
            pa.array([message.transactional for message in told], pa.bool_()),
            pa.array([message.content for message in told], pa.binary()),
        ],
        names=["_op", "_lsn", "_seq", "_commit_time", "prefix", "transactional", "content"],
    )
