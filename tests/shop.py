"""A small source and its copy: random changes, and the proof that the output is their history."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from runnel.postgres.lsn import Lsn
from servers import Database, await_condition

CONFIG = """\
source: {{url: "{url}", name: shop}}
log: {{path: ./log, retain: {retain}}}
pipelines:
  events: {{sink: {{type: files, path: out}}{more}}}
spark: {{master: "local[2]"}}
"""


class Shop:
    def __init__(self, pg: Database, directory: Path, *, seed: int = 1) -> None:
        self.pg = pg
        self.out = directory / "out"
        self._random = random.Random(seed)
        self._next = 1
        pg.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")

    def config(self, *, more: str = "", retain: str = "0") -> str:
        return CONFIG.format(url=self.pg.url, more=more, retain=retain)

    def work(self, transactions: int = 30) -> None:
        """Inserts, updates, deletes and changed keys, in transactions of a few changes."""
        with self.pg.connect() as connection:
            for _ in range(transactions):
                with connection.transaction():
                    for _ in range(self._random.randint(1, 4)):
                        connection.execute("INSERT INTO orders VALUES (%s, %s)", [self._next, "new"])
                        self._next += 1
                    some = self._random.randint(1, self._next)
                    connection.execute("UPDATE orders SET note = note || '+' WHERE id = %s", [some])
                    connection.execute("DELETE FROM orders WHERE id = %s", [some + 1])
                    connection.execute("UPDATE orders SET id = -id WHERE id = %s", [some + 2])

    def rows(self) -> dict[int, str]:
        with self.pg.connect() as connection:
            return dict(connection.execute("SELECT id, note FROM orders").fetchall())

    def changes(self) -> Iterator[dict[str, Any]]:
        """The output as a plain reader sees it: files in the order of their names."""
        for path in sorted(self.out.glob("*.jsonl")):
            for line in path.read_text().splitlines():
                yield json.loads(line)

    def copy(self) -> dict[int, str]:
        """The table as the output tells it. Every change must be there once and in order."""
        rows: dict[int, str] = {}
        last = (Lsn(0), -1)
        for change in self.changes():
            place = (Lsn.parse(change["lsn"]), change["seq"])
            assert place > last, f"{place} after {last}"
            last = place
            if change["op"] == "message":
                continue
            if change["op"] == "insert":
                assert change["key"]["id"] not in rows
            elif change["op"] == "delete":
                del rows[change["key"]["id"]]
            elif "before" in change:
                del rows[change["before"]["id"]]
            if "after" in change:
                rows[change["after"]["id"]] = change["after"]["note"]
        return rows

    def verify(self) -> None:
        assert self.copy() == self.rows()

    def await_delivered(self, timeout: float = 120) -> None:
        with self.pg.connect() as connection:
            row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
            connection.execute("SELECT pg_logical_emit_message(true, 'mark', '')")
        assert row is not None
        await_condition(lambda: self.position() >= Lsn.parse(row[0]), timeout, what="everything delivered")

    def position(self) -> Lsn:
        try:
            record = json.loads((self.out / "_runnel" / "position.json").read_text())
        except FileNotFoundError:
            return Lsn(0)
        return Lsn.parse(record["position"]["lsn"])


ROLES: dict[str, Callable[[list[str]], bool]] = {
    "capture": lambda line: "runnel" in line and line[-1] == "capture",
    "driver": lambda line: "runnel" in line and "pipeline" in line,
    "jvm": lambda line: "org.apache.spark.deploy.SparkSubmit" in line,
    "planner": lambda line: any("python_streaming_source_runner" in word for word in line),
    "worker": lambda line: "pyspark.daemon" in line,
}


def processes(pid: int, role: str) -> list[psutil.Process]:
    """The processes of a role below a supervisor."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        try:
            if ROLES[role](process.cmdline()):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found
