"""Reading an output at any moment: only what the record says is committed, each of it once.

Also while somebody writes, or after a crash: files past the record and bytes past an open file's
committed length are not looked at. Spans come in the order of the files' numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyarrow import csv

from ...errors import RunnelError
from .names import MESSAGES, RECORD, number_of
from .place import Place
from .record import Record

_STEP = 4 << 20
_STREAM = ("op", "schema", "table", "lsn", "seq", "xid", "time")


@dataclass(frozen=True, slots=True)
class Span:
    """Committed bytes of one file that were not there at the last look."""

    name: str
    start: int
    end: int

    @property
    def folder(self) -> str:
        return self.name.rpartition("/")[0]


class Committed:
    def __init__(self, place: Place) -> None:
        self._place = place
        self._seen: bytes | None = None
        self._read: dict[str, int] = {}
        self.record: Record | None = None

    def new(self) -> Iterator[Span]:
        """What was committed since the last call."""
        data = self._place.read(RECORD)
        if data is None or data == self._seen:
            return
        self._seen = data
        self.record = record = Record.decode(data, f"{self._place.root}/{RECORD}")
        lengths = {file.name: file.bytes for file in record.open.values()}
        numbered = sorted((number_of(name) or 0, name) for name in self._place.data_names())
        for number, name in numbered:
            start = self._read.get(name, 0)
            if number >= record.next or (start and name not in self._growing):
                continue
            end = lengths.get(name)
            end = self._place.size(name) if end is None else end
            if end is not None and end > start:
                self._read[name] = end
                yield Span(name, start, end)
        self._growing = set(lengths)

    _growing: set[str] = set()  # noqa: RUF012  replaced, never changed
    """Files that were open at the last look: the others have been read to their end."""


def lines(place: Place, span: Span) -> Iterator[bytes | memoryview]:
    """The span as JSON lines, in pieces. CSV and Parquet by table become an object for each row."""
    form = span.name.rpartition("/")[2].split(".")[1]
    if form == "parquet":
        yield from _parquet(place, span)
        return
    with place.source(span.name) as source:
        source.seek(span.start)
        if form == "jsonl":
            yield from _plain(source, span)
            return
        data = b"".join(bytes(piece) for piece in _plain(source, span))
        header = data if not span.start else b"".join(_plain_head(place, span))
    yield from _csv(data, header, span)


def _plain(source: Any, span: Span) -> Iterator[bytes]:
    if not span.name.endswith((".gz", ".zst")):
        left = span.end - span.start
        while left:
            data = source.read(min(left, _STEP))
            if not data:
                raise _short(span)
            left -= len(data)
            yield data
        return
    members = pa.BufferReader(source.read(span.end - span.start))
    with pa.CompressedInputStream(members, "gzip" if span.name.endswith(".gz") else "zstd") as stream:
        while data := stream.read(_STEP):
            yield data


def _short(span: Span) -> RunnelError:
    return RunnelError(
        f"{span.name} is shorter than its {span.end} committed bytes",
        hint="restore the file from a backup",
    )


def _plain_head(place: Place, span: Span) -> Iterator[bytes]:
    with place.source(span.name) as source:
        yield from _plain(source, Span(span.name, 0, span.start))


def _csv(data: bytes, header: bytes, span: Span) -> Iterator[bytes]:
    names = csv.read_csv(
        pa.BufferReader(header), parse_options=csv.ParseOptions(newlines_in_values=True)
    ).column_names
    if not data:
        return
    rows = csv.read_csv(
        pa.BufferReader(data),
        csv.ReadOptions(column_names=names, skip_rows=0 if span.start else 1, block_size=1 << 30),
        csv.ParseOptions(newlines_in_values=True),
        csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    for row in rows.to_pylist():
        yield (_default(row) if not span.folder else _object(row, span.folder)).encode() + b"\n"


def _default(row: dict[str, str | None]) -> str:
    """A row of the stream back in the default JSON."""
    quoted = {n: json.dumps(row[n], ensure_ascii=False) for n in _STREAM if row[n] is not None}
    parts = quoted | {n: str(row[n]) for n in ("seq", "xid") if row[n] is not None}
    if row["op"] == "message":
        parts |= {"prefix": parts.pop("table"), "content": str(row["after"])}
    else:
        parts |= {n: str(row[n]) for n in ("key", "before", "after", "unchanged") if row[n] is not None}
    return "{" + ",".join(f'"{name}":{value}' for name, value in parts.items()) + "}"


def _parquet(place: Place, span: Span) -> Iterator[bytes]:
    import pyarrow.parquet as pq

    with place.source(span.name) as source:
        for batch in pq.ParquetFile(source).iter_batches(4096):
            for row in batch.to_pylist():
                yield (_object(row, span.folder)).encode() + b"\n"


def _object(row: dict[str, Any], folder: str) -> str:
    table = {} if folder == MESSAGES else {"_table": folder}
    values = {name: _word(value) if isinstance(value, float) else value for name, value in row.items()}
    return json.dumps(
        table | values, default=_text, ensure_ascii=False, separators=(",", ":"), allow_nan=False
    )


def _word(value: float) -> float | str:
    """JSON has no number for these: they are Postgres' words, as in the default JSON."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(type(value).__name__)
