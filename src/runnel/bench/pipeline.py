"""Runnel as the benchmark drives it: a subscription of its own, driven by its own commands.

What comes in: sink settings, backlogs that were written to the source. What goes out: how long their
delivery took, and the CPU of each role.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import psycopg

from ..errors import RunnelError
from ..log import open_log
from ..postgres.lsn import Lsn
from .processes import Watch

if TYPE_CHECKING:
    from .drain import Bench

PATIENCE = 600.0
"""Seconds for one backlog; a drain that takes longer has come to a standstill."""


@dataclass(slots=True)
class Run:
    """One drain: wall time and CPU by role, walsender included."""

    seconds: float
    cpu: dict[str, float]


@dataclass(frozen=True, slots=True)
class Backlog:
    inside: Lsn
    """Before the commit of the last transaction, after every other one's."""
    end: Lsn
    """After all of it."""


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


@contextmanager
def _giving_up(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """What stands still is ended: whoever reads what it says then comes to an end, too."""
    timer = threading.Timer(PATIENCE, process.kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


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
            self.command(*words), capture_output=True, text=True, check=False, cwd=self.home,
        )  # fmt: skip
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
                with _giving_up(process):
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
            # Without a capture beside it a pipeline that is up says that it waits for one.
            if event.get("event") == "state" and event.get("state") in (state, "waiting"):
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
