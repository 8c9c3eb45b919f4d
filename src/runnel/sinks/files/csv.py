"""CSV: NULL (or absent) is nothing between the commas, an empty string is `""`, as Postgres does it.

Under `layout: stream` the columns are the members of the default JSON, key to unchanged as JSON text.
Under `layout: table` they are the table's own as Postgres' text, behind `_op`, `_lsn`, `_seq`,
`_commit_time` and `_unchanged` (a JSON array); other columns begin another file.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from ...changes.block import Window
from ...marshal.json import changes
from ...marshal.typed import messages, texts
from ...postgres.lsn import Lsn
from ..api import Reject
from .names import MESSAGES, folder_of
from .stage import Portion


class CsvStream:
    def encode(self, window: Window, rejects: list[Reject]) -> Iterator[Portion]:
        rows = changes(window)
        time = rows.schema.get_field_index("time")
        rows = rows.set_column(time, "time", _time(rows.column(time)))
        if rows.num_rows:
            yield _portion("", rows)


class CsvTables:
    def encode(self, window: Window, rejects: list[Reject]) -> Iterator[Portion]:
        for relation, rows in texts(window):
            time = next(i for i, f in enumerate(rows.schema) if pa.types.is_timestamp(f.type))
            rows = rows.set_column(time, rows.schema.names[time], _time(rows.column(time)))  # noqa: PLW2901
            yield _portion(folder_of(relation.schema, relation.name), rows)
        told = messages(window)
        if told.num_rows:
            lsn = pa.array([str(Lsn(value)) for value in told.column(1).to_pylist()])
            told = told.set_column(3, "_commit_time", _time(told.column(3))).set_column(1, "_lsn", lsn)
            yield _portion(MESSAGES, told)


def _time(array: pa.Array) -> pa.Array:
    return pc.strftime(array, "%Y-%m-%dT%H:%M:%SZ")


def _portion(folder: str, rows: pa.RecordBatch) -> Portion:
    out = pa.BufferOutputStream()
    csv.write_csv(rows, out, csv.WriteOptions(include_header=False))
    return Portion(folder, memoryview(out.getvalue()), rows.num_rows, header(rows.schema))


def header(schema: pa.Schema) -> bytes:
    return (",".join('"' + name.replace('"', '""') + '"' for name in schema.names) + "\n").encode()
