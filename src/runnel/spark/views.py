"""The public views of the change log for any PySpark user.

`changes`: one row per change, of all tables: `op, schema, table, lsn, seq, xid, time, key, before,
after, unchanged`, the last four as JSON text. `table`: the changes of one table with its columns typed,
`_op, _lsn, _seq, _commit_time`, and `_unchanged` (columns the WAL left out: null does not mean NULL).

What must hold: the columns of a table view are settled when it is loaded: those of the newest version
the log knows then, or those the user gave. They go with the reader to every task, so a running query
asks nothing of the log again: rows of other versions have null for what they lack, and nothing of what
is not asked for. A value its type cannot hold is an error that names it, never a changed value. A share
gives exactly the changes whose transactions committed in [start, end).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ..changes.decode import decode
from ..changes.relation import Relation
from ..errors import RunnelError, UsageError
from ..log import open_log
from ..marshal import json as marshal_json
from ..marshal.typed import arrow_schema, own_columns, typed_as
from ..postgres.lsn import Lsn
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


def columns(options: Mapping[str, str], given: StructType) -> pa.Schema | None:
    """What Spark says the view's columns are, for the tasks; None: those of the changes view."""
    if view_of(options) == "changes":
        return None
    from .arrow_types import arrow_type

    fields = []
    own = own_columns(given.names)
    for field in given.fields:
        kind = arrow_type(field.dataType)
        if (
            kind is None
            or (own.get(field.name, kind) != kind)
            or (pa.types.is_list(kind) and field.name not in own)
        ):
            raise UsageError(
                f"column {field.name!r} of {options['table']} cannot be {field.dataType.simpleString()}",
                hint="leave .schema(…) away, or make it a string and cast it behind the load",
            )
        fields.append(pa.field(field.name, kind))
    return pa.schema(fields)


def read(options: Mapping[str, str], target: pa.Schema | None, share: Share) -> Iterator[pa.RecordBatch]:
    log = open_log(log_path(options))
    label = "" if target is None else label_of(options["table"])
    for name in share.chunks:
        with closing(log.open(name)) as reader:
            for window in decode(reader, share.start, messages=True):
                some = _before(window, share.end)
                if target is None:
                    yield marshal_json.changes(some)
                else:
                    yield from _table_rows(some, label, target)


def _before(window: Window, end: Lsn) -> Window:
    """Without what committed at `end` or later: the last chunk of a bounded read goes on behind it."""
    if not len(window.transactions.lsn) or int(window.transactions.lsn.max()) < end:
        return window
    early = [sheet.order[window.lsn(sheet) < end] for sheet in window.sheets]
    return window.select(np.sort(np.concatenate(early)))


def _table_rows(window: Window, table: str, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    for rows, misfits in typed_as(window, table, target):
        if misfits:
            raise RunnelError(
                f"{table}: {misfits[0].reason}",
                hint="start the query again if the table was altered meanwhile; or read this stretch with"
                " the changes view, whose values are text",
            )
        yield rows


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
        " or tell its columns with .schema(…), or read the changes view",
    )


def view_of(options: Mapping[str, str]) -> str:
    view = options.get("view") or ("table" if "table" in options else "changes")
    if view not in VIEWS or (view == "table" and "table" not in options):
        raise UsageError(
            f"view={view!r}: expected changes, or table together with the option table",
            hint='.option("table", "public.orders")',
        )
    return view
