"""Two sinks for tests only, on sqlite: the plans that no sink of this version uses, exercised for real.

`single`: one task applies the whole batch and the position in the target's own transaction.
`keyed`: an append-only topic; writes show at once, the position is kept outside.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from runnel.changes.block import Window
from runnel.errors import Refused
from runnel.failpoints import failpoint
from runnel.marshal.json import lines
from runnel.postgres.lsn import Lsn
from runnel.progress.position import Position
from runnel.sinks.api import Attempt, Batch, Capabilities, Name, Plan, Receipt, Reject
from runnel.sinks.files.record import already_there


def connect(path: str) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None, timeout=30)
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE IF NOT EXISTS changes (n INTEGER PRIMARY KEY, task INTEGER, line TEXT)")
    database.execute("CREATE TABLE IF NOT EXISTS position (one INTEGER PRIMARY KEY, record TEXT)")
    database.execute("CREATE TABLE IF NOT EXISTS redelivered (lsn INTEGER, seq INTEGER)")
    return database


LONGEST = 2000
"""Of a change's JSON that they take."""


def texts(window: Window) -> tuple[list[str], list[Reject]]:
    """What is taken, and what is not."""
    taken, rejects = [], []
    for text in bytes(lines(window).data).decode().splitlines():
        if len(text) <= LONGEST:
            taken.append(text)
            continue
        change = json.loads(text)
        key = json.dumps(change["key"], separators=(",", ":")) if "key" in change else None
        table = f"{change['schema']}.{change['table']}"
        rejects.append(Reject(Lsn.parse(change["lsn"]), change["seq"], table, key, text, "too long"))
    return taken, rejects


def _record(database: sqlite3.Connection) -> Position | None:
    row = database.execute("SELECT record FROM position").fetchone()
    return Position.from_json(json.loads(row[0])) if row else None


def _store(database: sqlite3.Connection, position: Position) -> None:
    database.execute("REPLACE INTO position VALUES (1, ?)", (json.dumps(position.to_json()),))


class SingleSink:
    capabilities = Capabilities(
        Plan.SINGLE, holds_position=True, guarantee="exactly once", max_record_bytes=LONGEST
    )

    def __init__(self, path: str) -> None:
        self._path = path
        self._database = connect(path)
        self._epoch = -1

    def open(self, position: Position) -> Position:
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            record = _record(self._database)
            if record is not None:
                if not position.owns(record.lineage) or record.epoch > position.epoch:
                    raise Refused("the target belongs to another lineage or a later owner")
                position = replace(position, lsn=record.lsn, tables=record.tables)
            _store(self._database, position)
        self._epoch = position.epoch
        return position

    def task(self) -> Mapping[str, Any]:
        return {"path": self._path, "epoch": self._epoch}

    def commit(self, batch: Batch, receipts: Sequence[Receipt]) -> Lsn:
        if not receipts:  # nothing to apply: the record moves all the same
            writer = SingleWriter(self.task(), Attempt(batch.start, batch.end, 0, "none"))
            writer.finish()
            writer.abort()
        record = _record(self._database)
        assert record is not None
        if record.epoch != self._epoch:
            raise Refused("taken over")
        already_there(record.lsn, replace(batch, start=batch.end), "the target")
        return record.lsn

    def tick(self) -> Lsn:
        return self.flush()

    def flush(self) -> Lsn:
        record = _record(self._database)
        assert record is not None
        return record.lsn

    def reposition(self, lsn: Lsn) -> None:
        record = _record(self._database)
        assert record is not None
        _store(self._database, record.at(lsn))

    def redelivered(self) -> frozenset[Name]:
        rows = self._database.execute("SELECT lsn, seq FROM redelivered")
        return frozenset((Lsn(lsn), seq) for lsn, seq in rows)

    def redeliver(self, names: Sequence[Name], receipts: Sequence[Receipt]) -> None:
        if not names:  # else the task has done it
            self._database.execute("DELETE FROM redelivered")

    def close(self) -> None:
        self._database.close()


class SingleWriter:
    def __init__(self, task: Mapping[str, Any], attempt: Attempt) -> None:
        self._database = connect(task["path"])
        self._attempt = attempt
        self._database.execute("BEGIN IMMEDIATE")
        record = _record(self._database)
        assert record is not None
        self._record = record
        if record.epoch != task["epoch"]:
            self.abort()
            raise Refused("taken over")
        batch = Batch(attempt.start, attempt.end, 0, 0)
        try:
            self._skip = not attempt.letters and already_there(record.lsn, batch, "the target")
        except Refused:
            self.abort()
            raise

    def write(self, window: Window) -> Sequence[Reject]:
        taken, rejects = texts(window)
        if not self._skip:
            self._database.executemany(
                "INSERT INTO changes (task, line) VALUES (0, ?)", [(text,) for text in taken]
            )
        return rejects

    def finish(self) -> Mapping[str, Any]:
        failpoint("sink.staged")
        if not self._skip:
            if self._attempt.letters:
                self._database.execute("DELETE FROM redelivered")
                self._database.executemany("INSERT INTO redelivered VALUES (?, ?)", self._attempt.letters)
            else:
                _store(self._database, self._record.at(self._attempt.end))
            failpoint("sink.written")
            self._database.execute("COMMIT")
            failpoint("sink.committed")
        self._database.close()
        return {}

    def abort(self) -> None:
        self._database.close()  # an open transaction is rolled back


class KeyedSink:
    capabilities = Capabilities(
        Plan.KEYED,
        holds_position=False,
        guarantee="at least once, in order for each key",
        max_record_bytes=LONGEST,
    )

    def __init__(self, path: str) -> None:
        self._path = path
        connect(path).close()
        self._lsn = Lsn(0)

    def open(self, position: Position) -> Position:
        self._lsn = position.lsn
        return position

    def task(self) -> Mapping[str, Any]:
        return {"path": self._path}

    def commit(self, batch: Batch, receipts: Sequence[Receipt]) -> Lsn:
        if not already_there(self._lsn, batch, "the topic"):
            failpoint("sink.written")
            self._lsn = batch.end
            failpoint("sink.committed")
        return self._lsn

    def tick(self) -> Lsn:
        return self._lsn

    def flush(self) -> Lsn:
        return self._lsn

    def reposition(self, lsn: Lsn) -> None:
        self._lsn = lsn

    def redelivered(self) -> frozenset[Name]:
        return frozenset()

    def redeliver(self, names: Sequence[Name], receipts: Sequence[Receipt]) -> None:
        failpoint("sink.written")
        failpoint("sink.committed")

    def close(self) -> None:
        return


class KeyedWriter:
    def __init__(self, task: Mapping[str, Any], attempt: Attempt) -> None:
        self._database = connect(task["path"])
        self._attempt = attempt

    def write(self, window: Window) -> Sequence[Reject]:
        taken, rejects = texts(window)
        for text in taken:  # each one shows at once
            self._database.execute(
                "INSERT INTO changes (task, line) VALUES (?, ?)", (self._attempt.index, text)
            )
        return rejects

    def finish(self) -> Mapping[str, Any]:
        failpoint("sink.staged")
        self._database.close()
        return {}

    def abort(self) -> None:
        self._database.close()
