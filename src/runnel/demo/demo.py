"""`runnel demo`: an embedded PostgreSQL, a shop that writes, `runnel run` as a user starts it, a view.

What must hold: however it ends (time, Ctrl-C, SIGTERM, a closed terminal, kill -9) no process and no
directory is left. Everything lives in one scratch directory, and every child dies with this process.
The summary is a proof: each change the shop committed is in the files once, in order.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from ..errors import RunnelError
from .output import Follower, verify
from .scratch import Scratch, die_with_parent
from .server import Server, embedded_binaries
from .shop import SCHEMA, Writer
from .view import Facts, OnTerminal, Plain, View

LOOK = 0.1
START_SECONDS = 120.0
DRAIN_SECONDS = 30.0
STOP_SECONDS = 60.0
_STATE = re.compile(r"\bshop is ([a-z ]+)")

CONFIG = """\
# what `runnel run` runs here
source:
  url: ${SOURCE_URL}
  name: shop
pipelines:
  shop:
    sink: {type: files, path: out, format: jsonl}
spark:
  master: local[2]
"""


class Interrupted(Exception):
    """A signal came before the stream was up: go away at once."""


class Demo:
    def __init__(self, seconds: float | None, *, terminal: bool) -> None:
        self._seconds = seconds
        self._terminal = terminal
        self._asked = 0

    def run(self) -> int:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        try:
            with Scratch("runnel-demo-") as scratch:
                return self._in(scratch.path)
        except Interrupted:
            return 130

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._asked += 1

    def _in(self, place: Path) -> int:
        work, temporary = place / "work", place / "tmp"
        work.mkdir(mode=0o700)
        temporary.mkdir(mode=0o700)
        (work / "runnel.yaml").write_text(CONFIG)
        facts = Facts(Follower(work / "out"), str(work / "out"))
        view: View = OnTerminal(facts) if self._terminal else Plain(facts)
        view.say("starting an embedded PostgreSQL 18 …")
        with Server(embedded_binaries(), place / "postgres").initialize().start() as server:
            url = server.create_database("shop")
            with server.connect("shop") as connection:
                connection.execute(SCHEMA.encode())
            self._check()
            environment = {**os.environ, "SOURCE_URL": url, "TMPDIR": str(temporary)}
            view.say("making the subscription (runnel init), then starting Spark (runnel run) …")
            with _runnel("init", work, environment) as init:
                self._await_end(init)
            self._check()
            writer = Writer(url)
            with _runnel("run", work, environment) as child:
                writer.start()
                facts.began = time.monotonic()
                view.begin()
                try:
                    self._watch(child, writer, facts, view)
                finally:
                    writer.stop()
                    view.end()
                view.say("stopping …")
                child.stop()
            return self._summary(writer, facts, view)

    def _check(self) -> None:
        if self._asked:
            raise Interrupted

    def _await_end(self, child: _Child) -> None:
        while child.process.poll() is None:
            self._check()
            time.sleep(LOOK / 2)
        child.raise_if_failed()

    def _watch(self, child: _Child, writer: Writer, facts: Facts, view: View) -> None:
        """Until the time is up or somebody asks; then until the last change has arrived."""
        until: float | None = None
        asked = 0
        while True:
            facts.follower.look()
            facts.committed = writer.changes
            facts.state = child.state
            view.draw()
            if child.process.poll() is not None:
                child.raise_if_failed()
                raise RunnelError("runnel run ended by itself", hint="run it with --debug to see more")
            if writer.error is not None:
                raise RunnelError(f"the shop's writer failed: {writer.error}")
            now = time.monotonic()
            if until is None:
                over = self._seconds is not None and facts.seconds >= self._seconds
                if over or self._asked:
                    writer.stop()
                    asked = self._asked
                    patience = DRAIN_SECONDS if facts.follower.changes else START_SECONDS
                    until = now + (patience if over else min(patience, DRAIN_SECONDS / 3))
            elif facts.follower.changes >= writer.changes or now > until or self._asked > asked:
                facts.committed = writer.changes
                return
            time.sleep(LOOK)

    def _summary(self, writer: Writer, facts: Facts, view: View) -> int:
        verdict = verify(Path(facts.output))
        kinds = ", ".join(f"{count:,} {kind}s" for kind, count in sorted(writer.by_kind.items()))
        view.say(f"committed  {writer.changes:,} changes in {writer.transactions:,} transactions ({kinds})")
        whole = verdict.lines == writer.changes and verdict.in_order
        missing = writer.changes - verdict.lines
        word = "each once, in commit order" if whole else f"{missing:,} not delivered when it was stopped"
        view.say(f"delivered  {verdict.lines:,} JSON lines: {word}")
        view.say("nothing is left behind: server, log and files were temporary")
        if not verdict.in_order:
            raise RunnelError(
                "the files are not in order, or hold a change twice", hint="please report this"
            )
        if missing and not self._asked:
            raise RunnelError(
                f"{missing:,} changes were not delivered in time",
                hint="this machine may be busy: try again, or `runnel demo --seconds 60`",
            )
        return 0


class _Child:
    """`python -m runnel …`, its words kept for when it fails."""

    def __init__(self, command: str, work: Path, environment: dict[str, str]) -> None:
        self.command = command
        self.state = "starting Spark"
        self.said: deque[str] = deque(maxlen=20)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "runnel", command],
            cwd=work,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a terminal's Ctrl-C is ours; we then stop things in order
            preexec_fn=die_with_parent(),  # noqa: PLW1509 - two system calls, no locks
        )
        self._reader = threading.Thread(target=self._listen, name=f"runnel {command}", daemon=True)
        self._reader.start()

    def _listen(self) -> None:
        for line in self.process.stderr or ():
            self.said.append(line.rstrip())
            found = _STATE.search(line)
            if found:
                self.state = found[1].strip()

    def raise_if_failed(self) -> None:
        self._reader.join(timeout=5)
        if self.process.returncode:
            raise RunnelError(
                f"runnel {self.command} failed: " + " | ".join(list(self.said)[-3:]),
                hint="java -version must show 17 or later; `runnel --debug demo` shows more",
            )

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@contextmanager
def _runnel(command: str, work: Path, environment: dict[str, str]) -> Iterator[_Child]:
    child = _Child(command, work, environment)
    try:
        yield child
    finally:
        child.kill()
        if child.process.stderr is not None:
            child._reader.join(timeout=5)
            child.process.stderr.close()
