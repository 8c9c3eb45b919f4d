"""The public views of the change log for any PySpark user.

`changes`: one row per change, of all tables: `op, schema, table, lsn, seq, xid, time, key, before,
after, unchanged`, the last four as JSON text. `table`: the changes of one table with its columns typed,
`_op, _lsn, _seq, _commit_time`, and `_unchanged` (columns the WAL left out: null does not mean NULL).

What must hold: the columns of a table view are those of the newest version the log knows when the
query starts; older rows have null for what they lacked. A value its type cannot hold is an error that
names it, never a changed value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow as pa

from ..changes.decode import decode
from ..changes.relation import Relation
from ..errors import RunnelError, UsageError
from ..log import open_log
from ..marshal import json as marshal_json
from ..marshal.typed import arrow_schema, typed
from ..postgres.patterns import label_of
from .admission import Share, chain
from .options import log_path

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from ..changes.block import Window
    from ..log.api import ChangeLog

CHANGES = (
    "op string, schema string, table string, lsn string, seq long, xid long, time timestamp,"
    " key string, before string, after string, unchanged string"
)
VIEWS = ("changes", "table")


def schema(options: Mapping[str, str]) -> StructType | str:
    """What the view's rows look like."""
    if view_of(options) == "changes":
        return CHANGES
    from pyspark.sql.types import StructField, StructType

    from .arrow_types import spark_type

    relation = newest_relation(open_log(log_path(options)), label_of(options["table"]))
    fields = arrow_schema(relation)
    return StructType([StructField(field.name, spark_type(field.type), True) for field in fields])


def read(options: Mapping[str, str], share: Share) -> Iterator[pa.RecordBatch]:
    log = open_log(log_path(options))
    label = label_of(options["table"]) if view_of(options) == "table" else None
    target = arrow_schema(newest_relation(log, label)) if label is not None else None
    for name in share.chunks:
        with closing(log.open(name)) as reader:
            for window in decode(reader, share.start, messages=True):
                if label is None or target is None:
                    yield marshal_json.changes(window)
                else:
                    yield from _table_rows(window, label, target)


def _table_rows(window: Window, label: str, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    for part in typed(window):
        if part.relation.label != label:
            continue
        if part.misfits:
            raise RunnelError(
                f"{label}: {part.misfits[0].reason}",
                hint="read this stretch with the changes view, whose values are text",
            )
        yield _as_schema(part.rows, target)


def _as_schema(rows: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """An older version's rows under the newest version's columns."""
    if rows.schema.equals(target):
        return rows
    present = set(rows.schema.names)
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in present
        else pa.nulls(rows.num_rows, field.type)
        for field in target
    ]
    return pa.RecordBatch.from_arrays(columns, schema=target)


def newest_relation(log: ChangeLog, label: str) -> Relation:
    """The newest version of a table that any chunk of the log describes."""
    first = log.usage().first
    names = [ref.name for ref in chain(log, first)] if first is not None else []
    for name in reversed(names):
        with closing(log.open(name)) as reader:
            header = reader.header
        known = [*header.relations, *(relation for _, relation in header.changed)]
        found = [relation for relation in known if relation.label == label]
        if found:
            return found[-1]
    raise RunnelError(
        f"the change log {log.path} has no change of table {label!r} yet, so its columns are not known",
        hint='name it as schema.table, as in the source, and in quotes what holds a dot: "a.b".c;'
        " or read the changes view",
    )


def view_of(options: Mapping[str, str]) -> str:
    view = options.get("view") or ("table" if "table" in options else "changes")
    if view not in VIEWS or (view == "table" and "table" not in options):
        raise UsageError(
            f"view={view!r}: expected changes, or table together with the option table",
            hint='.option("table", "public.orders")',
        )
    return view
