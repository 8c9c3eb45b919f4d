"""Drain one backlog through `pg_recvlogical` and through Runnel, alternating, and compare the slopes.

Every drain has a slot (for Runnel: a subscription) of its own, made before the backlog is written. The
small backlog is drained first, then the rest is loaded and the large one drained by slots that have seen
nothing yet: rate = extra changes / extra time, so that start-up, connection and first batches drop out.
A Runnel drain runs from the start of `runnel capture` until the sink's record reaches the end of the
backlog; its Spark side is up before and has delivered a first part that an earlier capture left in the log,
else capture would be done while Spark still starts.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import psycopg
from psycopg import sql

from ..errors import RunnelError
from ..log import open_log
from ..postgres.lsn import Lsn
from . import workload as loads
from .processes import Watch
from .workload import Workload

WARM = (100_000_000, 100_020_000)
"""Row numbers of what is delivered before the clock starts."""

PATIENCE = 600.0
"""Seconds for one backlog; a drain that takes longer has come to a standstill."""


@dataclass(slots=True)
class Run:
    """One drain: wall time and CPU by role, walsender included."""

    seconds: float
    cpu: dict[str, float]


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


@dataclass(frozen=True, slots=True)
class Backlog:
    inside: Lsn
    """Before the commit of the last transaction, after every other one's."""
    end: Lsn
    """After all of it."""


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


class Walsender:
    """CPU of the server process behind a slot, sampled until the block ends."""

    def __init__(self, url: str, slot: str) -> None:
        self.url, self.slot, self.seconds = url, slot, 0.0

    def __enter__(self) -> Walsender:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        pid: int | None = None
        with psycopg.connect(self.url, autocommit=True) as connection:
            while not self._stop.is_set():
                if pid is None:
                    row = connection.execute(
                        "select active_pid from pg_replication_slots where slot_name = %s", (self.slot,)
                    ).fetchone()
                    pid = row[0] if row else None
                else:
                    try:
                        times = psutil.Process(pid).cpu_times()
                        self.seconds = max(self.seconds, times.user + times.system)
                    except psutil.Error:
                        return
                self._stop.wait(0.02)


@dataclass(slots=True)
class Pipeline:
    """One Runnel subscription with one or more pipelines into local sinks, driven by its own commands."""

    bench: Bench
    name: str
    sink: dict[str, Any]
    copies: int = 1

    @property
    def home(self) -> Path:
        return self.bench.scratch / self.name

    def sinks(self) -> dict[str, dict[str, Any]]:
        return {
            f"out{n}": self.sink
            | ({"path": str(self.home / f"out{n}")} if self.sink["type"] == "files" else {})
            for n in range(self.copies)
        }

    def init(self) -> None:
        self.home.mkdir(parents=True)
        config = {
            "source": {"url": self.bench.url, "name": self.name, "tables": ["bench.*"]},
            "log": str(self.home / "log"),
            "pipelines": {name: {"import": False, "sink": sink} for name, sink in self.sinks().items()},
            "spark": {"master": "local[2]"},
        }
        (self.home / "runnel.yaml").write_text(json.dumps(config))
        self.call("init")

    def destroy(self) -> None:
        self.call("destroy")
        shutil.rmtree(self.home)

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "runnel", "-c", str(self.home / "runnel.yaml"), *words]

    def call(self, *words: str) -> None:
        done = subprocess.run(
            self.command(*words), capture_output=True, text=True, check=False, cwd=self.home
        )
        if done.returncode:
            raise RunnelError(f"`runnel {' '.join(words)}` failed: {done.stderr.strip()}", hint="see above")

    def slot(self) -> str:
        with self.bench.connect() as connection:
            (slot,) = connection.execute(
                "select slot_name from pg_replication_slots where slot_name like %s",
                (f"{self.name}\\_________",),
            ).fetchall()[0]
        return str(slot)

    def delivered(self, backlog: Backlog) -> bool:
        """All of it, by every pipeline."""
        if self.sink["type"] == "files":
            return min(self._record(name) for name in self.sinks()) > backlog.end
        return self._last_line() > backlog.inside

    def _record(self, name: str) -> Lsn:
        try:
            record = json.loads((self.home / name / "_runnel" / "position.json").read_text())
        except (OSError, ValueError):
            return Lsn(0)
        return Lsn.parse(record["position"]["lsn"])

    def _last_line(self) -> Lsn:
        """Of a stream without a record of its own: what its last whole line says."""
        with open(self.home / "stdout", "rb") as output:
            size = output.seek(0, os.SEEK_END)
            output.seek(max(0, size - 65536))
            lines = output.read().split(b"\n")
        return Lsn.parse(json.loads(lines[-2])["lsn"]) if len(lines) > 1 else Lsn(0)

    @contextmanager
    def started(self, *words: str, until: str | None = None) -> Iterator[subprocess.Popen[bytes]]:
        """Run a command until the block ends; with `until`, first wait for every pipeline's state."""
        read, write = os.pipe()
        os.set_inheritable(write, True)
        with open(self.home / f"{words[0]}.log", "ab") as log, open(self.home / "stdout", "ab") as output:
            process = subprocess.Popen(
                self.command(*words), stdout=output, stderr=log, cwd=self.home, close_fds=False,
                env=os.environ | {"RUNNEL_EVENTS_FD": str(write)},
            )  # fmt: skip
        os.close(write)
        events = os.fdopen(read, "r", encoding="utf-8")
        try:
            if until is not None:
                self._await_state(events, until)
            yield process
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            events.close()

    def _await_state(self, events: Any, state: str) -> None:
        waiting = set(self.sinks())
        for line in events:
            event = json.loads(line)
            if event.get("event") == "state" and event.get("state") == state:
                waiting.discard(event["who"])
                if not waiting:
                    return
        raise RunnelError(f"{self.name} ended before it was {state}", hint=self._last_words())

    def fill(self, backlog: Backlog) -> None:
        """Let capture alone bring a backlog into the log."""
        log = open_log(str(self.home / "log"))
        with self.started("capture") as capture:
            self._wait(lambda: (log.usage().end or 0) > backlog.end, 0.05, capture)

    def await_delivery(self, backlog: Backlog, step: float, *processes: subprocess.Popen[bytes]) -> None:
        self._wait(lambda: self.delivered(backlog), step, *processes)

    def _wait(self, done: Callable[[], bool], step: float, *processes: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            if any(process.poll() is not None for process in processes):
                raise RunnelError(f"{self.name} ended early", hint=self._last_words())
            if time.monotonic() > deadline:
                raise RunnelError(f"{self.name} stands still", hint=self._last_words())
            time.sleep(step)

    def _last_words(self) -> str:
        """Its logs go with the scratch directory."""
        tails = [log.read_text(errors="replace")[-1000:] for log in sorted(self.home.glob("*.log"))]
        return "the end of its logs:\n" + "\n".join(tails)

    def drain(self, warm: Backlog, backlog: Backlog) -> Run:
        with (
            self.started("pipeline", *self.sinks(), until="live") as driver,
            Walsender(self.bench.url, self.slot()) as walsender,
        ):
            self.await_delivery(warm, 0.05, driver)
            with Watch([driver.pid]) as before:
                before.look()
            base = before.cpu()
            began = time.monotonic()
            with self.started("capture") as capture, Watch([driver.pid, capture.pid]) as watch:
                self.await_delivery(backlog, 0.01, driver, capture)
                seconds = time.monotonic() - began
                watch.look()
                cpu = watch.cpu()
        used = {k: v - base.get(k, 0.0) for k, v in cpu.items()}
        used["walsender"] = walsender.seconds
        return Run(seconds, used)
