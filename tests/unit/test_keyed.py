"""A batch divided by key: every change is one task's, a key's changes are the same task's and in order."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contract.sqlite_sinks import KeyedWriter, connect
from logs import LINEAGE, START, LogMaker, order_ids
from runnel.changes.block import Window
from runnel.marshal.json import lines
from runnel.postgres.lsn import Lsn
from runnel.sinks.api import Attempt, Plan
from runnel.sinks.registry import SINKS, SinkType
from runnel.spark import work
from runnel.spark.admission import SHARE_BYTES, shares_by_key
from runnel.spark.keyed import part, ties_keys
from runnel.spark.work import WorkSpec
from windows import (
    ITEMS,
    UNCHANGED,
    Change,
    Transaction,
    delete,
    insert,
    message,
    relation,
    truncate,
    update,
    window,
)

PAIRS = relation("pairs", {"a": "text", "b": "text", "note": "text"}, key=(0, 1))
KEYLESS = relation("keyless", {"note": "text"}, key=())
INDEXED = relation("indexed", {"id": "int4", "code": "text"})
INDEXED = replace(
    INDEXED,
    identity="i",
    columns=(replace(INDEXED.columns[0], identity=False), replace(INDEXED.columns[1], identity=True)),
)
TASKS = 3


def told(some: Window) -> list[dict[str, Any]]:
    return [json.loads(line) for line in bytes(lines(some).data).splitlines()] if some.changes else []


def name(change: dict[str, Any]) -> tuple[Lsn, int]:
    return Lsn.parse(change["lsn"]), change["seq"]


def owner(change: dict[str, Any]) -> str:
    return json.dumps([change["table"], change.get("key")])


def changes(random: random.Random) -> list[Change]:
    out: list[Change] = []
    for n in range(60):
        key = random.choice(["", "1", "11", 'a"b', "ü" * random.randint(1, 40)])
        out += [
            insert(n, "x"),
            update(random.randint(0, n), "y"),
            delete(random.randint(0, n)),
            insert(key, "1", "z", into=PAIRS),
            insert("1", key, "z", into=PAIRS),
            insert("same", into=KEYLESS),
        ]
    return out


def test_every_change_is_one_tasks_and_a_keys_are_the_same_tasks_in_order() -> None:
    chosen = random.Random(7)
    windows = [window(Transaction(lsn, tuple(changes(chosen)))) for lsn in (100, 200, 300)]
    assert not any(ties_keys(some) for some in windows)
    every = [change for some in windows for change in told(some)]
    owners: dict[str, int] = {}
    found: list[tuple[Lsn, int]] = []
    for task in range(TASKS):
        mine = [change for some in windows for change in told(part(some, task, TASKS))]
        assert len(mine) > len(every) / TASKS / 4
        assert [name(change) for change in mine] == sorted(name(change) for change in mine)
        for change in mine:
            assert owners.setdefault(owner(change), task) == task
        found += [name(change) for change in mine]
    assert sorted(found) == [name(change) for change in every]


def test_a_table_whose_old_rows_do_not_tell_the_key_is_one_tasks_and_so_are_messages() -> None:
    rows = [insert(n, f"c{n}", into=INDEXED) for n in range(50)]
    some = window(Transaction(100, (*rows, *(message("app", b"x") for _ in range(5)))))
    whose = [[change["op"] for change in told(part(some, task, TASKS))] for task in range(TASKS)]
    assert sum(ops.count("insert") == 50 for ops in whose) == 1
    assert whose[0].count("message") == 5


@pytest.mark.parametrize(
    ("changes", "ties"),
    [
        ([update(5, "moved", old=(1,))], True),
        ([update(5, "moved", old=(1, "before"))], True),
        ([update(5, "stays", old=(5, "before"))], False),
        ([truncate(ITEMS)], True),
        ([update(UNCHANGED, "x")], True),
        ([update(5, UNCHANGED)], False),
        ([update(5, "x"), delete(5), insert(5, "y")], False),
    ],
)
def test_what_concerns_more_than_one_key_is_noticed(changes: list[Change], ties: bool) -> None:
    assert ties_keys(window(Transaction(100, (insert(1, "a"), *changes)))) is ties


@pytest.mark.parametrize("tied", [False, True])
def test_the_tasks_of_a_batch_deliver_it_once_together_or_the_first_alone_where_keys_are_tied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tied: bool
) -> None:
    class Type(SinkType):
        def writer(self, task: Mapping[str, Any], attempt: Attempt) -> KeyedWriter:
            return KeyedWriter(task, attempt)

    monkeypatch.setitem(SINKS, "files", Type(SINKS["files"].settings, SINKS["files"].module))
    monkeypatch.setattr("runnel.spark.keyed.ties_keys", lambda _: tied)
    maker = LogMaker(tmp_path / "log", lineage=LINEAGE)
    for _ in range(4):
        end = maker.append(5, rows=3)
    refs = [replace(ref, bytes=SHARE_BYTES) for ref in maker.log.chunks(Lsn(START))]
    split = shares_by_key(Lsn(START), end, refs, TASKS)
    assert [(share.index, share.of) for share in split] == [(0, 3), (1, 3), (2, 3)]
    assert sum(share.captured for share in split) == 60
    target = str(tmp_path / "target.db")
    spec = WorkSpec("p", maker.log.path, "files", {"path": target}, plan=Plan.KEYED)
    reports = [work.run(spec, share, 0) for share in reversed(split)]
    assert not any(report.error for report in reports)
    assert sum(report.changes for report in reports) == 60
    with connect(target) as database:
        rows = database.execute("SELECT task, line FROM changes").fetchall()
    assert sorted(json.loads(line)["key"]["id"] for _, line in rows) == sorted(order_ids(0, 20, rows=3))
    assert {task for task, _ in rows} == ({0} if tied else {0, 1, 2})


def test_a_batch_with_a_schema_change_and_a_small_one_are_one_task(tmp_path: Path) -> None:
    maker = LogMaker(tmp_path / "log", lineage=LINEAGE)
    end = maker.append(1)
    refs = list(maker.log.chunks(Lsn(START)))
    assert [share.of for share in shares_by_key(Lsn(START), end, refs, TASKS)] == [1]
    altered = [replace(refs[0], bytes=100 * SHARE_BYTES, schema_change=True)]
    assert [share.of for share in shares_by_key(Lsn(START), end, altered, TASKS)] == [1]
