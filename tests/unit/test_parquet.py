"""Typed columns: every value exactly, or told as one that cannot be held."""

from __future__ import annotations

import errno
import json
import math
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from outputs import Output
from runnel.errors import Transient
from runnel.marshal.typed import arrow_type, typed
from runnel.sinks.files import parquet
from windows import UNCHANGED, Transaction, delete, insert, relation, truncate, update, window

NUMERIC_10_2 = (10 << 16 | 2) + 4
NUMERIC_38_0 = (38 << 16) + 4
NUMERIC_39_0 = (39 << 16) + 4
NUMERIC_5_MINUS_2 = (5 << 16 | (-2 & 0x7FF)) + 4
NUMERIC_2_5 = (2 << 16 | 5) + 4


def table(output: Output, name: str | None = None) -> pa.Table:
    return pq.read_table(output.root / (name or output.files()[0]), partitioning=None)


def one(kind: str, *values: object, typmod: int = -1) -> tuple[pa.DataType, list[Any], list[str]]:
    """A column of one type: its Arrow type, what is held, and why the others are not."""
    of = relation("t", {"v": kind}, key=(), typmods={"v": typmod})
    [rows] = typed(window(Transaction(0x1000, tuple(insert(value, into=of) for value in values))))
    return rows.rows.schema.field("v").type, rows.rows["v"].to_pylist(), [m.reason for m in rows.misfits]


@pytest.mark.parametrize(
    ("kind", "typmod", "texts", "values"),
    [
        ("int2", -1, ["-32768", "32767", None], [-32768, 32767, None]),
        ("int4", -1, ["-2147483648"], [-2147483648]),
        ("int8", -1, ["9223372036854775807"], [9223372036854775807]),
        ("oid", -1, ["4294967295"], [4294967295]),
        ("float8", -1, ["Infinity", "-Infinity", "1e-320", "-0"], [math.inf, -math.inf, 1e-320, 0.0]),
        ("float4", -1, ["3.4028235e+38"], [3.4028234663852886e38]),
        ("bool", -1, ["t", "f", None], [True, False, None]),
        ("numeric", NUMERIC_10_2, ["12345678.90", "-0.01"], [Decimal("12345678.90"), Decimal("-0.01")]),
        ("numeric", NUMERIC_38_0, ["9" * 38], [Decimal("9" * 38)]),
        ("numeric", NUMERIC_39_0, ["9" * 39, "NaN"], ["9" * 39, "NaN"]),
        ("numeric", NUMERIC_5_MINUS_2, ["12300"], ["12300"]),
        ("numeric", NUMERIC_2_5, ["0.00012"], ["0.00012"]),
        ("numeric", -1, ["1e1000", "Infinity", "0.10"], ["1e1000", "Infinity", "0.10"]),
        ("date", -1, ["0001-01-01", "9999-12-31"], [date(1, 1, 1), date(9999, 12, 31)]),
        ("timestamp", -1, ["2026-11-18 06:43:00.000001"], [datetime(2026, 11, 18, 6, 43, 0, 1)]),
        (
            "timestamptz",
            -1,
            ["2026-11-18 06:43:00.5+00", "1969-12-31 23:59:59+00"],
            [
                datetime(2026, 11, 18, 6, 43, 0, 500000, UTC),
                datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),
            ],
        ),
        ("bytea", -1, ["\\x", "\\x00ff", None, "\\x68656c6c6f"], [b"", b"\x00\xff", None, b"hello"]),
        ("uuid", -1, ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"], ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
        ("jsonb", -1, ['{"a": 1}', "null"], ['{"a": 1}', "null"]),
        ("_int4", -1, ["{1,NULL}"], ["{1,NULL}"]),
        ("text", -1, ["", "名前", None], ["", "名前", None]),
        ("interval", -1, ["1 mon"], ["1 mon"]),
        ("mood", -1, ["happy"], ["happy"]),
    ],
)
def test_a_value_is_held_exactly(kind: str, typmod: int, texts: list[Any], values: list[Any]) -> None:
    _, held, misfits = one(kind, *texts, typmod=typmod)
    assert held == values
    assert misfits == []


def test_not_a_number_is_a_float() -> None:
    assert math.isnan(one("float8", "NaN")[1][0])


@pytest.mark.parametrize(
    ("kind", "typmod", "text"),
    [
        ("date", -1, "0044-03-15 BC"),
        ("date", -1, "infinity"),
        ("date", -1, "5874897-12-31"),
        ("timestamp", -1, "-infinity"),
        ("timestamp", -1, "4713-01-01 00:00:00 BC"),
        ("timestamptz", -1, "294276-12-31 23:59:59.999999+00"),
        ("numeric", NUMERIC_10_2, "NaN"),
        ("text", -1, b"\xff\xfe"),
    ],
)
def test_a_value_that_cannot_be_held_is_told_and_the_others_are_kept(
    kind: str, typmod: int, text: object
) -> None:
    good = {"date": "2026-01-01", "numeric": "1.00", "text": "x"}.get(kind, "2026-01-01 00:00:00")
    good += "+00" if kind == "timestamptz" else ""
    _, held, misfits = one(kind, good, text, None, good, text, typmod=typmod)
    assert len(held) == 3
    assert held[1] is None
    assert len(misfits) == 2
    assert misfits[0].startswith("column 'v': ")
    assert "cannot be held as" in misfits[0]


def test_a_row_that_does_not_fit_is_a_reject_with_its_change(tmp_path: Path) -> None:
    of = relation("days", {"id": "int8", "day": "date"})
    output = Output(tmp_path, format="parquet")
    output.add(
        insert(1, "2026-01-01", into=of), insert(2, "0044-03-15 BC", into=of), insert(3, None, into=of)
    )
    [reject] = output.rejects
    assert (reject.lsn, reject.seq, reject.table, reject.key) == (0x1000, 1, "public.days", '{"id":2}')
    assert json.loads(reject.change)["after"] == {"id": 2, "day": "0044-03-15 BC"}
    assert "'day'" in reject.reason
    output.sink.flush()
    assert table(output)["id"].to_pylist() == [1, 3]


def test_all_operations_stand_in_commit_order(tmp_path: Path) -> None:
    output = Output(tmp_path, format="parquet")
    output.add(insert(1, "a"), update(1, UNCHANGED), delete(1), truncate(), insert(2, "b"))
    output.sink.flush()
    rows = table(output).to_pylist()
    assert [row["_op"] for row in rows] == ["insert", "update", "delete", "truncate", "insert"]
    assert [row["_seq"] for row in rows] == [0, 1, 2, 3, 4]
    assert {row["_lsn"] for row in rows} == {0x1000}
    assert [row["id"] for row in rows] == [1, 1, 1, None, 2]
    assert [row["_unchanged"] for row in rows] == [None, ["note"], None, None, None]
    assert rows[0]["_commit_time"].utcoffset() is not None


def test_an_update_that_changes_the_key_tells_the_old_one(tmp_path: Path) -> None:
    output = Output(tmp_path, format="parquet")
    output.add(insert(1, "a"), update(2, "a", old=(1,)), update(2, "b", old=(2, "a")), update(2, "c"))
    output.sink.flush()
    before = [row["_before"] for row in table(output).to_pylist()]
    assert before == [None, '{"id":1}', '{"id":2,"note":"a"}', None]


def test_small_batches_are_merged_into_one_file_when_it_is_closed(tmp_path: Path) -> None:
    output = Output(tmp_path, format="parquet")
    start = output.at
    for n in range(6):
        assert output.add(insert(n, "x")) == start
    assert output.files() == []
    assert output.sink.flush() == output.at
    assert output.files() == ["public.items/000000000001.parquet"]
    assert table(output)["id"].to_pylist() == list(range(6))
    assert pq.ParquetFile(tmp_path / output.files()[0]).num_row_groups == 1
    assert output.staged() == []


def test_files_are_closed_by_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = Output(tmp_path, format="parquet", roll_seconds=60)
    start = output.at
    output.add(insert(1, "x"))
    assert output.sink.tick() == start
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 61)
    assert output.sink.tick() == output.at
    assert len(output.files()) == 1


def test_files_are_closed_by_size_and_a_large_piece_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "GROUP", 1000)
    output = Output(tmp_path, format="parquet", roll_bytes=4000)
    output.add(insert(1, "x"))
    batch, receipts = output.receipt(
        Transaction(int(output.at), tuple(insert(n, f"{n * 7919}" * 9) for n in range(2, 400)))
    )
    [piece] = receipts[0].payload["pieces"]
    inode = (tmp_path / piece["file"]).stat().st_ino
    assert output.sink.commit(batch, receipts) == batch.end
    assert len(output.files()) == 2
    assert (tmp_path / output.files()[1]).stat().st_ino == inode
    assert [n for name in output.files() for n in table(output, name)["id"].to_pylist()] == list(
        range(1, 400)
    )


def test_a_close_that_fails_takes_its_files_back_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Output(tmp_path, format="parquet")
    output.add(insert(1, "a"), insert(1, "b", into=relation("other")))

    def full(name: str, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(output.sink._place, "replace", full)  # type: ignore[attr-defined]
        with pytest.raises(Transient, match=r"position\.json"):
            output.sink.flush()
    assert output.files() == []
    assert output.sink.flush() == output.at
    assert [name.partition("/")[0] for name in output.files()] == ["public.items", "public.other"]


def test_a_changed_schema_begins_another_file(tmp_path: Path) -> None:
    output = Output(tmp_path, format="parquet")
    output.add(insert(1, "a"))
    output.add(insert(2, "b", into=relation("items", {"id": "int8", "note": "text"})))
    output.add(insert(3, "c", "t", into=relation("items", {"id": "int8", "note": "text", "more": "bool"})))
    output.sink.flush()
    types = [pq.read_schema(tmp_path / name).field("id").type for name in output.files()]
    assert types == [pa.int32(), pa.int64(), pa.int64()]


def test_two_versions_of_a_table_in_one_window_keep_their_order(tmp_path: Path) -> None:
    wider = relation("items", {"id": "int4", "note": "text", "more": "bool"})
    output = Output(tmp_path, format="parquet")
    output.add(insert(1, "a"), insert(2, "b", "t", into=wider))
    output.sink.flush()
    assert [table(output, name)["id"].to_pylist() for name in output.files()] == [[1], [2]]


def test_rows_of_tables_with_the_same_columns_come_apart_in_their_order() -> None:
    names = ["a", "b", "c"]
    alike = {name: relation(name, {"id": "int4", "note": "text"}) for name in names}
    other = relation("d", {"id": "int8", "note": "text"})
    rows = [("a", 1), ("b", 2), ("d", 3), ("a", 4), ("c", 5), ("a", 6), ("b", 7), ("d", 8)]
    of = alike | {"d": other}
    mixed = [insert(id, "x", into=of[name]) for name, id in rows]
    mixed += [update(9, "y", of=of["b"]), delete(4, of=of["a"]), insert("1e", "z", into=of["c"])]
    found = {}
    for some in typed(window(Transaction(0x1000, tuple(mixed)))):
        got = some.rows.to_pydict()
        found[some.relation.name] = list(zip(got["_seq"], got["_op"], got["id"], strict=True))
        assert [misfit.order for misfit in some.misfits] == ([10] if some.relation.name == "c" else [])
    assert found == {
        "a": [(0, "insert", 1), (3, "insert", 4), (5, "insert", 6), (9, "delete", 4)],
        "b": [(1, "insert", 2), (6, "insert", 7), (8, "update", 9)],
        "c": [(4, "insert", 5)],
        "d": [(2, "insert", 3), (7, "insert", 8)],
    }


def test_an_empty_batch_behind_waiting_rows_does_not_move_the_position(tmp_path: Path) -> None:
    from runnel.postgres.lsn import Lsn
    from runnel.sinks.api import Batch

    output = Output(tmp_path, format="parquet")
    start = output.at
    output.add(insert(1, "a"))
    assert output.sink.commit(Batch(output.at, Lsn(output.at + 100), 0, 0), []) == start
    assert output.sink.flush() == output.at + 100


def test_the_type_of_each_column_is_known_without_rows() -> None:
    of = relation("t", {"n": "numeric", "m": "money"}, typmods={"n": NUMERIC_10_2})
    assert [arrow_type(column) for column in of.columns] == [pa.decimal128(10, 2), pa.string()]
