"""What a running Runnel costs and how late it is: latency, memory of a huge transaction, idle CPU, several
pipelines on one log, many tables."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import psycopg

from . import workload as loads
from .drain import WARM, Bench
from .pipeline import Pipeline
from .processes import Watch
from .workload import Workload

FILES = {"type": "files", "format": "jsonl"}
ONE = Workload("live", "one table", 1, 0, 0, 1)


def latency(bench: Bench, seconds: int = 30, rate: int = 100) -> dict[str, Any]:
    """Commit to readable line, one-row transactions at a steady rate."""
    with bench.connect() as connection:
        loads.create(connection, ONE)
    pipeline = Pipeline(bench, "latency", FILES)
    pipeline.init()
    committed: dict[int, float] = {}
    seen: dict[int, float] = {}
    with pipeline.started("run", until="live"):
        tail = Tail(pipeline.home / "out0")
        total = seconds * rate
        writer = threading.Thread(target=_write, args=(bench.url, total, rate, committed))
        writer.start()
        deadline = time.monotonic() + seconds + 60
        while len(seen) < total and time.monotonic() < deadline:
            lines = tail.lines()
            now = time.monotonic()
            for line in lines:
                seen[json.loads(line)["key"]["id"]] = now
            if not lines:
                time.sleep(0.002)
        writer.join()
    pipeline.destroy()
    settled = min(rate * 5, total // 2)  # the first seconds meet a JVM that still compiles
    late = sorted(seen[i] - committed[i] for i in seen if i > settled)
    return {
        "rate": rate,
        "seen": len(seen),
        "of": total,
        "p50_ms": round(late[len(late) // 2] * 1000),
        "p99_ms": round(late[len(late) * 99 // 100] * 1000),
        "max_ms": round(late[-1] * 1000),
    }


def _write(url: str, total: int, rate: int, committed: dict[int, float]) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        began = time.monotonic()
        for i in range(1, total + 1):
            wait = began + i / rate - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            connection.execute("insert into bench.t0 (id, name) values (%s, 'late?')", (i,))
            committed[i] = time.monotonic()


class Tail:
    """The committed lines of a files sink, as a reader that looks at its record sees them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.read: dict[str, int] = {}

    def lines(self) -> list[bytes]:
        out: list[bytes] = []
        for file in sorted(self.path.glob("*.jsonl")):
            at = self.read.get(file.name, 0)
            if file.stat().st_size > at:
                with open(file, "rb") as source:
                    source.seek(at)
                    data = source.read()
                whole = data.rfind(b"\n") + 1
                self.read[file.name] = at + whole
                out += data[:whole].splitlines()
        return out


def idle(bench: Bench, seconds: int = 30) -> dict[str, Any]:
    """CPU of the whole tree, percent of a core, when nothing happens."""
    with bench.connect() as connection:
        loads.create(connection, ONE)
    pipeline = Pipeline(bench, "idle", FILES)
    pipeline.init()
    with pipeline.started("run", until="live") as process, Watch([process.pid], 0.5) as watch:
        time.sleep(15)  # this measures rest: the JVM finishes what its start left, and says no word of it
        watch.look()
        before, began = watch.cpu(), time.monotonic()
        time.sleep(seconds)
        watch.look()
        after, spent = watch.cpu(), time.monotonic() - began
    pipeline.destroy()
    percent = {k: round((v - before.get(k, 0.0)) / spent * 100, 2) for k, v in after.items()}
    return {"percent": percent, "total": round(sum(percent.values()), 2)}


def huge(bench: Bench, rows: int = 3_000_000) -> dict[str, Any]:
    """One transaction of `rows` inserts: peak resident memory by role, and the same for a small one."""
    out: dict[str, Any] = {"rows": rows}
    for label, size in (("small", 10_000), ("huge", rows)):
        work = Workload(label, label, 1, 0, size, size)
        with bench.connect() as connection:
            loads.create(connection, work)
        pipeline = Pipeline(bench, f"huge_{label}", FILES)
        pipeline.init()
        with pipeline.started("run", until="live") as process, Watch([process.pid], 0.1) as watch:
            began = time.monotonic()
            backlog = bench.load(work, 0, size)
            pipeline.await_delivery(backlog, 0.1, process)
            out[f"{label}_seconds"] = round(time.monotonic() - began, 1)
            watch.look()
        out[f"{label}_mib"] = {k: v >> 20 for k, v in watch.peak().items()}
        pipeline.destroy()
    return out


def fan_out(bench: Bench, changes: int = 300_000) -> list[dict[str, Any]]:
    """One to four pipelines on one log: time and CPU for all of them to deliver the same changes."""
    out = []
    work = Workload("fan", "fan-out", 1, 0, changes, 100)
    for copies in (1, 2, 3, 4):
        with bench.connect() as connection:
            loads.create(connection, work)
        pipeline = Pipeline(bench, f"fan_{copies}", FILES, copies)
        pipeline.init()
        warm = bench.load(work, *WARM)
        pipeline.fill(warm)
        run = pipeline.drain(warm, bench.load(work, 0, changes))
        pipeline.destroy()
        out.append(
            {
                "pipelines": copies,
                "seconds": round(run.seconds, 2),
                "cpu_us": {k: round(v / changes * 1e6, 2) for k, v in run.cpu.items()},
            }
        )
    return out


def many_tables(bench: Bench, changes: int = 300_000) -> list[dict[str, Any]]:
    """The same number of changes over 1, 100 and 1,000 tables: cost per change."""
    out = []
    for tables in (1, 100, 1000):
        work = Workload("tables", f"{tables} tables", tables, 0, changes, 100)
        with bench.connect() as connection:
            loads.create(connection, work)
        pipeline = Pipeline(bench, f"tables_{tables}", FILES)
        pipeline.init()
        warm = bench.load(work, *WARM)
        pipeline.fill(warm)
        run = pipeline.drain(warm, bench.load(work, 0, changes))
        pipeline.destroy()
        cpu = {k: round(v / changes * 1e6, 2) for k, v in run.cpu.items()}
        out.append(
            {
                "tables": tables,
                "seconds": round(run.seconds, 2),
                "cpu_us": cpu,
                "outside_us": round(sum(v for k, v in cpu.items() if k != "walsender"), 2),
            }
        )
    return out
