"""Drain one backlog through `pg_recvlogical` and through Runnel, alternating, and compare the slopes.

Every drain has a slot (for Runnel: a subscription) of its own, made before the backlog is written. The
small backlog is drained first, then the rest is loaded and the large one drained by slots that have seen
nothing yet: rate = extra changes / extra time, so that start-up, connection and first batches drop out.
A Runnel drain runs from the start of `runnel capture` until the sink's record reaches the end of the
backlog; its Spark side is up before and has delivered a first part that an earlier capture left in the log,
else capture would be done while Spark still starts.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from ..errors import RunnelError
from ..postgres.lsn import Lsn
from . import workload as loads
from .pipeline import Backlog, Pipeline, Run, Walsender
from .processes import Watch
from .workload import Workload

WARM = (100_000_000, 100_020_000)
"""Row numbers of what is delivered before the clock starts."""


@dataclass(slots=True)
class Result:
    workload: str
    title: str
    sink: str
    changes: int
    """Between the small and the large backlog."""
    native: list[float] = field(default_factory=list)
    """Changes a second of pg_recvlogical, one per repetition."""
    runnel: list[float] = field(default_factory=list)
    native_cpu: list[dict[str, float]] = field(default_factory=list)
    runnel_cpu: list[dict[str, float]] = field(default_factory=list)
    """µs a change by role."""

    @property
    def ratio(self) -> float:
        return statistics.median(r / n for r, n in zip(self.runnel, self.native, strict=True))

    @property
    def outside(self) -> float:
        """µs of CPU a change outside Postgres."""
        return statistics.median(
            sum(v for k, v in cpu.items() if k != "walsender") for cpu in self.runnel_cpu
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "workload": self.workload,
            "title": self.title,
            "sink": self.sink,
            "changes": self.changes,
            "ratio": round(self.ratio, 3),
            "outside_us": round(self.outside, 3),
            "pg_recvlogical_rows_s": [round(x) for x in self.native],
            "runnel_rows_s": [round(x) for x in self.runnel],
            "pg_recvlogical_cpu_us": self.native_cpu,
            "runnel_cpu_us": self.runnel_cpu,
        }


@dataclass(slots=True)
class Bench:
    url: str
    """A database of a server of our own: the bench creates and drops freely in it."""
    tools: Path
    """Where pg_recvlogical is."""
    scratch: Path
    say: Callable[[str], None]

    @contextmanager
    def connect(self) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            yield connection

    def compare(self, workload: Workload, sinks: dict[str, dict[str, Any]], repeat: int) -> list[Result]:
        with self.connect() as connection:
            loads.create(connection, workload)
            connection.execute("drop publication if exists bench_native")
            connection.execute(
                sql.SQL("create publication bench_native for table {}").format(
                    sql.SQL(", ").join(loads.table(n) for n in range(workload.tables))
                )
            )
            natives = [f"bench_{size}_{i}" for size in ("small", "large") for i in range(repeat)]
            for slot in natives:
                connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        drains = {
            (sink, size, i): Pipeline(self, f"{workload.name}_{sink}_{size}_{i}", settings)
            for sink, settings in sinks.items()
            for size in ("small", "large")
            for i in range(repeat)
        }
        for drain in drains.values():
            drain.init()
        warm = self.load(workload, *WARM)
        for drain in drains.values():
            drain.fill(warm)
        runs: dict[tuple[str, str, int], Run] = {}
        for size, first, last in (
            ("small", 0, workload.small),
            ("large", workload.small, workload.large),
        ):
            self.say(f"{workload.title}: writing {last - first:,} changes")
            backlog = self.load(workload, first, last)
            for i in range(repeat):
                runs["pg_recvlogical", size, i] = self._native(f"bench_{size}_{i}", backlog)
                self.say(
                    f"  {size} {i + 1}: pg_recvlogical {runs['pg_recvlogical', size, i].seconds:.2f} s"
                )
                for sink in sinks:
                    runs[sink, size, i] = drains[sink, size, i].drain(warm, backlog)
                    self.say(f"  {size} {i + 1}: runnel → {sink} {runs[sink, size, i].seconds:.2f} s")
        for drain in drains.values():
            drain.destroy()
        with self.connect() as connection:
            for slot in natives:
                connection.execute("select pg_drop_replication_slot(%s)", (slot,))
        extra = workload.large - workload.small
        results = []
        for sink in sinks:
            result = Result(workload.name, workload.title, sink, extra)
            for i in range(repeat):
                for name, rates, cpus in (
                    ("pg_recvlogical", result.native, result.native_cpu),
                    (sink, result.runnel, result.runnel_cpu),
                ):
                    small, large = runs[name, "small", i], runs[name, "large", i]
                    rates.append(extra / max(large.seconds - small.seconds, 1e-3))
                    cpus.append(
                        {
                            k: round((large.cpu[k] - small.cpu.get(k, 0.0)) / extra * 1e6, 3)
                            for k in sorted(large.cpu)
                        }
                    )
            results.append(result)
        return results

    def load(self, workload: Workload, first: int, last: int) -> Backlog:
        with self.connect() as connection:
            loads.load(connection, workload, first, last - workload.per_transaction)
            inside = _insert_lsn(connection)
            loads.load(connection, workload, last - workload.per_transaction, last)
            end = _insert_lsn(connection)
            # Who waits until it has passed `end` needs something behind it.
            connection.execute("select pg_logical_emit_message(true, 'runnel', 'end of backlog')")
            connection.execute("checkpoint")
        return Backlog(inside, end)

    def _native(self, slot: str, backlog: Backlog) -> Run:
        command = [
            str(self.tools / "pg_recvlogical"), "-d", self.url, "-S", slot, "--start", "-n", "-F", "0",
            "-f", "/dev/null", f"--endpos={backlog.end}",
            "-o", "proto_version=1", "-o", "publication_names=bench_native",
        ]  # fmt: skip
        with Walsender(self.url, slot) as walsender:
            began = time.monotonic()
            process = subprocess.Popen(command)
            with Watch([process.pid], 0.02) as watch:
                code = process.wait()
                seconds = time.monotonic() - began
        if code:
            raise RunnelError(f"pg_recvlogical ended with {code}", hint="its message is above")
        return Run(seconds, {"client": sum(watch.cpu().values()), "walsender": walsender.seconds})


def _insert_lsn(connection: psycopg.Connection[Any]) -> Lsn:
    (text,) = connection.execute("select pg_current_wal_insert_lsn()::text").fetchall()[0]
    return Lsn.parse(text)
