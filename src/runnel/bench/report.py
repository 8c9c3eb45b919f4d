"""The whole benchmark in one run: a table for people, a JSON file for machines, rows for the docs page."""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..demo.scratch import Scratch
from ..demo.server import Server, embedded_binaries
from . import live
from .drain import Bench, Result
from .stages import stages
from .workload import INSERTS, MIXED, SINGLES, Workload

JSONL: dict[str, Any] = {"type": "files", "format": "jsonl"}
PARQUET: dict[str, Any] = {"type": "files", "format": "parquet", "roll_seconds": 0.2}
"""Rolled at once: a file, and with it the position, else waits ten minutes for more."""
STDOUT: dict[str, Any] = {"type": "stdout"}

DRAINS: tuple[tuple[Workload, dict[str, dict[str, Any]]], ...] = (
    (INSERTS, {"jsonl": JSONL, "parquet": PARQUET, "stdout": STDOUT}),
    (MIXED, {"jsonl": JSONL}),
    (SINGLES, {"jsonl": JSONL}),
)

SERVER = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "1GB",
    "max_wal_size": "20GB",
    "checkpoint_timeout": "1h",
    "autovacuum": "off",
    "max_replication_slots": "60",
    "max_wal_senders": "20",
}
"""So that loading is quick and nothing but decoding moves while a drain is timed."""


def run(console: Console, parts: tuple[str, ...], repeat: int, output: Path) -> None:
    """Figures go to `output` as soon as they are there: a long run may be cut off."""
    with Scratch("runnel-bench-") as scratch:
        binaries = embedded_binaries()
        server = Server(binaries, scratch.path / "server", SERVER).initialize().start()
        try:
            url = server.create_database("bench")
            bench = Bench(url, binaries / "bin", scratch.path / "runs", console.print)
            _measure(bench, console, parts, repeat, output)
        finally:
            server.destroy()


def _measure(bench: Bench, console: Console, parts: tuple[str, ...], repeat: int, output: Path) -> None:
    out: dict[str, Any] = {
        "when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "machine": _machine(),
    }
    results: list[Result] = []
    for workload, sinks in DRAINS:
        if workload.name in parts:
            results += bench.compare(workload, sinks, repeat)
            out["drain"] = [r.to_json() for r in results]
            _save(out, output)
    if results:
        console.print(drain_table(results))
    for part, measure in (
        ("stages", stages),
        ("latency", live.latency),
        ("idle", live.idle),
        ("huge", live.huge),
        ("pipelines", live.fan_out),
        ("tables", live.many_tables),
    ):
        if part in parts:
            bench.say(f"{part} …")
            out[part] = measure(bench)
            _save(out, output)
            console.print_json(json.dumps({part: out[part]}))


def drain_table(results: list[Result]) -> Table:
    table = Table(title="Drain of a backlog, by slope; CPU in µs a change")
    for column in (
        "backlog",
        "sink",
        "× pg_recvlogical",
        "changes/s",
        "pg_recvlogical/s",
        "outside Postgres",
        "by role",
    ):
        table.add_column(column)
    for r in results:
        cpu = r.runnel_cpu[len(r.runnel_cpu) // 2]
        table.add_row(
            r.title, r.sink, f"{r.ratio:.2f}",
            f"{min(r.runnel):,.0f} – {max(r.runnel):,.0f}", f"{min(r.native):,.0f} – {max(r.native):,.0f}",
            f"{r.outside:.2f}", ", ".join(f"{k} {v:.2f}" for k, v in cpu.items()),
        )  # fmt: skip
    return table


def _save(result: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


def _machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }
