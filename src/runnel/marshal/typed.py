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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..changes.block import I32, I64, Sheet, Tuples, Window
from ..changes.relation import Column, Relation
from ..postgres.types import BUILTIN
from .convert import converted
from .json import member
from .stamps import lsn_stamps

_HOLDS = {
    BUILTIN[name]: kind
    for name, kind in {
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
    }.items()
}
"""By oid: a user's type may have any of these names."""
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
    if column.type.base == BUILTIN["numeric"]:
        return _decimal(column.typmod)
    return _HOLDS.get(column.type.base, pa.string())


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
    for group in _groups(window.sheets):
        bad: dict[int, str] = {}
        relation = group.relations[0]
        arrays = _meta(window, relation, group.sheets)
        for number, column in enumerate(relation.columns):
            arrays.append(converted(_texts(group.sheets, number), arrow_type(column), column, bad))
        rows = pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(relation))
        misfits: dict[int, list[Misfit]] = {}
        for row, reason in sorted(bad.items()):
            misfits.setdefault(int(group.table[row]), []).append(Misfit(int(group.order[row]), reason))
        for table, some in group.apart(rows, np.fromiter(bad, np.intp)):
            yield TypedRows(group.relations[table], some, misfits.get(table, []))


def typed_as(
    window: Window, table: str, columns: pa.Schema
) -> Iterator[tuple[pa.RecordBatch, list[Misfit]]]:
    """The rows of one table under columns that were settled before, whatever its version: a column of the
    row that is not among them is left out, one that the row lacks is null, and one of another type is
    read from Postgres' text. `columns` may begin with Runnel's own under other names than this version
    would give them; else those without more underscores are meant."""
    names = dict(zip(_own_names(columns.names), _META, strict=True))
    for group in _groups(_sheets_of(window, table)):
        bad: dict[int, str] = {}
        relation = group.relations[0]
        places = {column.name: place for place, column in enumerate(relation.columns)}
        own = dict(zip(_META, _meta(window, relation, group.sheets), strict=True))
        arrays = []
        for field in columns:
            if field.name in names:
                arrays.append(own[names[field.name]])
            elif field.name not in places:
                arrays.append(pa.nulls(len(group.order), field.type))
            else:
                place = places[field.name]
                column = relation.columns[place]
                foreign = arrow_type(column) != field.type
                arrays.append(
                    converted(_texts(group.sheets, place), field.type, column, bad, foreign=foreign)
                )
        rows = pa.RecordBatch.from_arrays(arrays, schema=columns)
        misfits = [Misfit(int(group.order[row]), reason) for row, reason in sorted(bad.items())]
        for _, some in group.apart(rows, np.fromiter(bad, np.intp)):
            yield some, misfits


def own_columns(names: Sequence[str]) -> dict[str, pa.DataType]:
    """Those of a table's columns that are Runnel's, with the type that each has."""
    return dict(zip(_own_names(names), _META.values(), strict=True))


def _own_names(names: Sequence[str]) -> list[str]:
    more = names[0].removesuffix("_op") if names and names[0].endswith("_op") else ""
    ours = [more + name for name in _META]
    return ours if set(more) <= {"_"} and list(names[: len(ours)]) == ours else list(_META)


def _sheets_of(window: Window, table: str) -> Iterator[Sheet]:
    for sheet in window.sheets:
        mine = [number for number, relation in enumerate(sheet.relations) if relation.label == table]
        if mine and len(mine) == len(sheet.relations):
            yield sheet
        elif mine and len(rows := np.flatnonzero(np.isin(sheet.which, mine))):
            yield sheet.select(rows)


def texts(window: Window) -> Iterator[tuple[Relation, pa.RecordBatch]]:
    """The same with Postgres' own text in every column, `_lsn` as Postgres writes it, and `_unchanged`
    as a JSON array. No value can be a misfit."""
    for group in _groups(window.sheets):
        relation = group.relations[0]
        arrays = _meta(window, relation, group.sheets)
        which = np.concatenate([sheet.transaction for sheet in group.sheets])
        arrays[1] = _lsn_texts(window.transactions.lsn).take(pa.array(which))
        arrays[4] = _each_distinct(arrays[4], lambda names: json.dumps(names, ensure_ascii=False))
        arrays += [_texts(group.sheets, number) for number in range(len(relation.columns))]
        names = [*_meta_names(relation), *(column.name for column in relation.columns)]
        rows = pa.RecordBatch.from_arrays(arrays, names=names)
        for table, some in group.apart(rows, np.empty(0, np.intp)):
            yield group.relations[table], some


@dataclass(slots=True)
class _Group:
    """Rows of tables with the same columns: converted together, so that many small tables cost little
    more than a large one."""

    relations: list[Relation]
    sheets: list[Sheet]
    table: npt.NDArray[np.intp]
    """Per row of the sheets, one after another: index into `relations`."""
    order: I32

    def apart(
        self, rows: pa.RecordBatch, without: npt.NDArray[np.intp]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The rows of each table, in commit order."""
        place = np.lexsort((self.order, self.table))
        if len(without):
            place = place[np.isin(place, without, invert=True)]
        if len(self.relations) == 1:
            rises = len(place) == len(self.table) and bool((place[1:] > place[:-1]).all())
            yield 0, rows if rises else rows.take(pa.array(place))
            return
        rows = rows.take(pa.array(place))
        first = 0
        for table, size in enumerate(
            np.bincount(self.table[place], minlength=len(self.relations)).tolist()
        ):
            # A copy: who holds back one table's rows shall not keep those of all others in memory.
            mine = [pa.concat_arrays([column.slice(first, size)]) for column in rows.columns]
            first += size
            yield table, pa.RecordBatch.from_arrays(mine, schema=rows.schema)


class _Alike:
    """Tables with the same columns have one number. A relation is mostly the same object in every chunk:
    found by identity, else by value."""

    _LIMIT = 1 << 14

    def __init__(self) -> None:
        self._numbers: dict[int, tuple[Relation, int]] = {}
        self._columns: dict[tuple[Column, ...], int] = {}

    def forget(self) -> None:
        """Between windows, if there is too much: within one, numbers must stay."""
        if len(self._numbers) > self._LIMIT:
            self._numbers.clear()
            self._columns.clear()

    def number(self, relation: Relation) -> int:
        known = self._numbers.get(id(relation))
        if known is None:
            number = self._columns.setdefault(relation.columns, len(self._columns))
            known = self._numbers[id(relation)] = relation, number
        return known[1]


_alike = _Alike()


def _groups(sheets: Iterable[Sheet]) -> Iterator[_Group]:
    _alike.forget()
    found: dict[int, list[Sheet]] = {}
    for sheet in sheets:
        if not sheet.relations:
            continue
        numbers = [_alike.number(relation) for relation in sheet.relations]
        if len(set(numbers)) == 1:
            found.setdefault(numbers[0], []).append(sheet)
            continue
        number = np.array(numbers)[sheet.which]
        rows = np.argsort(number, kind="stable")
        for some in np.split(rows, np.flatnonzero(np.diff(number[rows])) + 1):
            found.setdefault(int(number[some[0]]), []).append(sheet.select(some))
    for mine in found.values():
        places = _Places()
        table = np.concatenate([places.of(sheet) for sheet in mine])
        order = np.concatenate([sheet.order for sheet in mine])
        yield _Group(places.relations, mine, table, order)


class _Places:
    """Numbers the relations that occur, equal ones alike."""

    def __init__(self) -> None:
        self.relations: list[Relation] = []
        self._by_oid: dict[int, list[int]] = {}

    def of(self, sheet: Sheet) -> npt.NDArray[np.intp]:
        """Per row: index into `relations`."""
        number = np.empty(len(sheet.relations), np.intp)
        for one in np.flatnonzero(np.bincount(sheet.which)).tolist():
            number[one] = self._place(sheet.relations[one])
        return number[sheet.which]

    def _place(self, relation: Relation) -> int:
        known = self._by_oid.setdefault(relation.oid, [])
        for place in known:
            if self.relations[place] is relation or self.relations[place] == relation:
                return place
        known.append(len(self.relations))
        self.relations.append(relation)
        return known[-1]


def _meta(window: Window, relation: Relation, sheets: Sequence[Sheet]) -> list[pa.Array]:
    return [
        _repeated([sheet.op.value for sheet in sheets], sheets),
        pa.array(np.concatenate([window.lsn(sheet) for sheet in sheets])),
        pa.array(np.concatenate([sheet.seq for sheet in sheets])),
        pa.array(np.concatenate([window.time(sheet) for sheet in sheets])).cast(_META["_commit_time"]),
        _unchanged(relation, sheets),
        pa.concat_arrays([_before(window, sheet) for sheet in sheets]),
    ]


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


def _repeated(values: Sequence[Any], sheets: Sequence[Sheet]) -> pa.Array:
    which = np.repeat(np.arange(len(sheets)), [len(sheet) for sheet in sheets])
    return pa.array(values, pa.string()).take(pa.array(which))


def _source(sheet: Sheet) -> Tuples | None:
    return sheet.new if sheet.new is not None else sheet.old


def _texts(sheets: Sequence[Sheet], column: int) -> pa.Array:
    return pa.concat_arrays([_text(sheet, column) for sheet in sheets])


def _text(sheet: Sheet, column: int) -> pa.Array:
    tuples = _source(sheet)
    if tuples is None or column not in tuples.present:
        return pa.nulls(len(sheet), pa.binary())
    return tuples.column(column)


def _unchanged(relation: Relation, sheets: Sequence[Sheet]) -> pa.Array:
    """Few rows have any: one list for each distinct pattern of columns."""
    parts = []
    kind = _META["_unchanged"]
    for sheet in sheets:
        masks = None if sheet.new is None else np.array([sheet.new.unchanged(c) for c in sheet.new.present])
        if masks is None or not masks.any():
            parts.append(pa.nulls(len(sheet), kind))
            continue
        patterns, which = np.unique(masks, axis=1, return_inverse=True)
        names = [
            [relation.columns[c].name for c in np.flatnonzero(patterns[:, p])] or None
            for p in range(patterns.shape[1])
        ]
        parts.append(pa.array(names, kind).take(pa.array(which.ravel())))
    return pa.concat_arrays(parts)


def _before(window: Window, sheet: Sheet) -> pa.Array:
    if sheet.new is None or sheet.old is None:
        return pa.nulls(len(sheet), pa.string())
    return member(window, sheet, "before").cast(pa.string())


def messages(window: Window) -> pa.RecordBatch:
    """The window's logical messages, in order: few, so one by one."""
    rows = []
    for sheet in window.sheets:
        if not sheet.relations:
            columns = (sheet.order, window.lsn(sheet), sheet.seq, window.time(sheet), sheet.messages)
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
