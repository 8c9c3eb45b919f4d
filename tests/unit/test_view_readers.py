"""The public views' readers, as Spark calls them, without Spark."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types

from logs import LINEAGE, STEP, LogMaker, order_ids
from runnel.changes.relation import Relation
from runnel.errors import RunnelError, UsageError
from runnel.log.api import ChangeLog, ChunkReader
from runnel.marshal.typed import arrow_schema, typed_as
from runnel.postgres.lsn import Lsn
from runnel.spark import views
from runnel.spark.options import limits
from runnel.spark.source import BatchReader, RunnelDataSource, StreamReader
from windows import Transaction, insert, relation, window

TABLE = {"table": "public.orders"}


def loaded(maker: LogMaker, **options: str) -> tuple[dict[str, str], Any]:
    """As after `.load()`: the options, and the columns that Spark goes by."""
    told = {"log": maker.log.path, "start": "earliest", **options}
    given = views.schema(told)
    return told, None if isinstance(given, str) else views.columns(told, given)


def column(reader: Any, parts: Any, name: str) -> list[Any]:
    """What tasks read: the reader reaches them pickled."""
    there = pickle.loads(pickle.dumps(reader))
    return [value for part in parts for rows in there.read(part) for value in rows[name].to_pylist()]


def streamed(reader: StreamReader, name: str) -> tuple[list[Any], dict[str, str]]:
    """Everything a query reads until nothing is new, and its last offset."""
    start, values = reader.initialOffset(), []
    while (end := reader.latestOffset(start)) != start:
        values += column(reader, reader.partitions(start, end), name)
        start = end
    return values, end


def test_a_table_view_goes_on_when_the_log_no_longer_describes_its_table(tmp_path: Path) -> None:
    maker = LogMaker(tmp_path / "log", lineage=LINEAGE)
    maker.append(2)
    options, columns = loaded(maker, **TABLE)
    reader = StreamReader(options, columns)
    start = reader.initialOffset()
    middle = reader.latestOffset(start)
    end = maker.advance()
    maker.log.trim(Lsn.parse(middle["lsn"]))
    parts = reader.partitions(middle, {"lsn": str(end)})
    assert column(reader, parts, "id") == []


def test_a_task_opens_its_own_chunks_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maker = LogMaker(tmp_path / "log", lineage=LINEAGE)
    for _ in range(5):
        maker.append(1)
    reader = BatchReader(*loaded(maker, **TABLE))
    share = reader.partitions()[0].value
    opened: list[str] = []
    log: ChangeLog = maker.log
    monkeypatch.setattr(views, "open_log", lambda _: log)
    plain = log.open

    def opening(name: str) -> ChunkReader:
        opened.append(name)
        return plain(name)

    monkeypatch.setattr(log, "open", opening)
    list(reader.read(type("Part", (), {"value": share})))
    assert opened == list(share.chunks)


@pytest.mark.parametrize("table", [{}, TABLE])
@pytest.mark.parametrize("taken", [1, 2, 3, 5])
def test_a_bound_is_exact_also_inside_a_chunk_and_what_follows_begins_there(
    tmp_path: Path, table: dict[str, str], taken: int
) -> None:
    maker = LogMaker(tmp_path / "log", lineage=LINEAGE)
    maker.append(3)
    maker.append(3)
    bound = str(Lsn(maker.start + (taken + 1) * STEP))  # the commit of the first that is not meant
    name = "id" if table else "key"
    every = [*order_ids(0, 6)] if table else [f'{{"id":"{one}"}}' for one in order_ids(0, 6)]
    batch = BatchReader(*loaded(maker, until=bound, **table))
    assert column(batch, batch.partitions(), name) == every[:taken]
    rest = BatchReader(*loaded(maker, **table | {"start": bound}))
    assert column(rest, rest.partitions(), name) == every[taken:]
    values, end = streamed(StreamReader(*loaded(maker, until=bound, **table)), name)
    assert values == every[:taken]
    assert end == {"lsn": bound}
    assert streamed(StreamReader(*loaded(maker, **table | {"start": bound})), name)[0] == every[taken:]


def test_a_bound_at_or_before_the_start_reads_nothing(tmp_path: Path) -> None:
    maker = LogMaker(tmp_path / "log", lineage=LINEAGE)
    maker.append(3)
    batch = BatchReader(*loaded(maker, until=str(Lsn(maker.start)), **TABLE))
    assert column(batch, batch.partitions(), "id") == []


@pytest.mark.parametrize("name", ["max_bytes", "until", "linger"])
def test_an_option_that_is_nonsense_is_named(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name}='many' is not") as caught:
        limits({name: "many"})
    assert caught.value.hint


def test_the_most_bytes_of_a_batch_are_a_size() -> None:
    assert limits({"max_bytes": "64MiB"}).max_bytes == 64 << 20
    assert limits({"max_bytes": "4096"}).max_bytes == 4096


def test_columns_of_another_type_than_they_can_have_are_refused_at_load() -> None:
    source = RunnelDataSource({"log": "/nowhere", **TABLE})
    structure = types.StructType([types.StructField("a", types.IntegerType())])
    for name, wrong in {
        "_lsn": types.StringType(),
        "id": structure,
        "tags": types.ArrayType(types.StringType()),
    }.items():
        with pytest.raises(UsageError, match=f"column '{name}'"):
            source.streamReader(types.StructType([types.StructField(name, wrong)]))


def rows(old: Relation, target: pa.Schema, *values: object) -> dict[str, list[Any]]:
    found = [
        some
        for some, misfits in typed_as(
            window(Transaction(100, (insert(*values, into=old),))), old.label, target
        )
        if not misfits
    ]
    assert len(found) == 1
    assert found[0].schema == target
    named: dict[str, list[Any]] = found[0].to_pydict()
    return named


def test_rows_of_another_version_stand_under_the_columns_that_were_settled() -> None:
    settled = relation(columns={"id": "int4", "gone": "text", "note": "text"})
    target = arrow_schema(settled)
    later = rows(relation(columns={"id": "int4", "note": "text", "more": "text"}), target, 1, "x", "y")
    assert (later["id"], later["gone"], later["note"]) == ([1], [None], ["x"])
    assert "more" not in later
    named = rows(relation(columns={"id": "int4", "_op": "text"}), target, 1, "mine")
    assert (named["_op"], named["_lsn"]) == (["insert"], [100])


@pytest.mark.parametrize(
    ("old", "now", "value", "held"),
    [
        ("bool", "text", "t", "t"),
        ("int4", "text", "7", "7"),
        ("int4", "int8", "7", 7),
        ("int8", "int4", "7", 7),
        ("int8", "int4", "5000000000", None),
        ("text", "int4", "007", None),
        ("text", "int4", "0x10", None),
        ("float8", "float4", "0.1234567890123456", None),
        ("float8", "float4", "0.5", 0.5),
        ("int8", "float8", "9007199254740993", None),
        ("int8", "float8", "9007199254740992", 9007199254740992.0),
        ("numeric", "float8", "NaN", "nan"),
        ("timestamp", "date", "2026-11-18 10:00:00", None),
        ("date", "date", "2026-11-18", "2026-11-18"),
        ("text", "bool", "yes", None),
        ("text", "bool", "t", True),
        ("text", "bytea", "zzab", None),
        ("text", "bytea", "\\xab c", None),
        ("text", "bytea", "x", None),
        ("text", "bytea", "\\xabcd", b"\xab\xcd"),
        ("bytea", "text", "\\xabcd", "\\xabcd"),
        ("timestamp", "timestamptz", "2026-11-18 10:00:00", None),
    ],
)
def test_a_value_of_an_altered_column_is_held_as_it_was_or_named_and_never_changed(
    old: str, now: str, value: str, held: Any
) -> None:
    target = arrow_schema(relation(columns={"id": "int4", "v": now}))
    some = window(Transaction(100, (insert(1, value, into=relation(columns={"id": "int4", "v": old})),)))
    (kept, misfits), *_ = typed_as(some, "public.items", target)
    if held is None:
        assert [misfit.reason for misfit in misfits] == [
            f"column 'v': {value!r} cannot be held as {target.field('v').type}"
        ]
        with pytest.raises(RunnelError, match="cannot be held"):
            list(views._table_rows(some, "public.items", target))
    else:
        assert not misfits
        (found,) = kept["v"].to_pylist()
        assert (str(found) if isinstance(held, str) else found) == held


def test_a_column_keeps_fractions_of_the_digits_it_has() -> None:
    wide = relation(columns={"id": "int4", "v": "numeric"}, typmods={"v": (10 << 16 | 4) + 4})
    narrow = relation(columns={"id": "int4", "v": "numeric"}, typmods={"v": (10 << 16 | 2) + 4})
    assert str(rows(narrow, arrow_schema(wide), 1, "1.50")["v"][0]) == "1.5000"
    some = window(Transaction(100, (insert(1, "1.505", into=wide),)))
    (_, misfits), *_ = typed_as(some, "public.items", arrow_schema(narrow))
    assert "1.505" in misfits[0].reason
