"""One child process: started, listened to, brought back.

A child speaks through two pipes: events (see runnel.events) and stderr, whose lines are log lines,
but for the two lines of a failure (`runnel: what` and `  → what to do`), which are kept as the reason.
Its standard output is ours: there is where a stdout sink's data goes.

What must hold: a child never outlives its supervisor, not even one that was killed with SIGKILL; a
terminal's Ctrl-C reaches only the supervisor, which then stops its children in order.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import IO, Any

from ..progress.owners import OWNER_VARIABLE, identity
from .handover import Handover

REFUSED = (2, 3)
"""Exit codes after which starting again is no use."""

_PR_SET_PDEATHSIG = 1
_HEALTHY_AFTER = 60.0
_BACKOFF = (0.2, 15.0)


@dataclass(frozen=True, slots=True)
class Event:
    child: str
    value: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    child: str
    text: str


Said = Event | Line


@dataclass(slots=True)
class Child:
    name: str
    arguments: Sequence[str]
    config: Handover
    said: SimpleQueue[Said]
    process: subprocess.Popen[bytes] | None = None
    error: tuple[str, str] | None = None
    """What and what to do, of its last failure."""
    started_at: float = 0.0
    restart_at: float = 0.0
    starts: int = 0
    _pause: float = 0.0
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        """Must be called in the supervisor's main thread: the parent-death signal follows the thread."""
        self.error = None
        self.starts += 1
        self.started_at = time.monotonic()
        events_in, events_out = os.pipe()
        # its predecessor is dead: what that one still seems to own at the server is the child's to take
        owner = {OWNER_VARIABLE: identity()}
        environment = {**os.environ, **owner, "RUNNEL_EVENTS_FD": str(events_out)}
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "runnel", "-c", str(self.config.path), *self.arguments],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=environment,
                pass_fds=(events_out, *self.config.descriptors),
                start_new_session=True,
                preexec_fn=_die_with(os.getpid()),  # noqa: PLW1509  only one system call is made there
            )
        finally:
            os.close(events_out)
        assert self.process.stderr is not None  # noqa: S101
        self._threads = [
            threading.Thread(target=self._read_events, args=(os.fdopen(events_in, "rb"),), daemon=True),
            threading.Thread(target=self._read_lines, args=(self.process.stderr,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def exit_code(self) -> int | None:
        """Of a process that has ended and was not yet looked at; it is forgotten by this."""
        if self.process is None or self.process.poll() is None:
            return None
        for thread in self._threads:
            thread.join(timeout=1.0)
        code = self.process.returncode
        self.process = None
        return code

    def back_off(self) -> float:
        """Decide when to start it again; seconds until then."""
        now = time.monotonic()
        if now - self.started_at > _HEALTHY_AFTER:
            self._pause = 0.0
        self._pause = min(_BACKOFF[1], max(_BACKOFF[0], self._pause * 2))
        self.restart_at = now + self._pause
        return self._pause

    def terminate(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def _read_events(self, pipe: IO[bytes]) -> None:
        with pipe:
            for line in pipe:
                try:
                    self.said.put(Event(self.name, json.loads(line)))
                except ValueError:
                    continue  # cut off in the middle by the child's death

    def _read_lines(self, pipe: IO[bytes]) -> None:
        with pipe:
            for raw in pipe:
                text = raw.decode(errors="replace").rstrip("\n")
                if text.startswith("runnel: "):
                    self.error = (text.removeprefix("runnel: "), "")
                elif text.startswith("  → ") and self.error is not None:
                    self.error = (self.error[0], text.removeprefix("  → "))
                else:
                    self.said.put(Line(self.name, text))


def _die_with(parent: int) -> Any:
    """For the child between fork and exec: be killed when the supervisor dies. Linux only."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def arm() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before the call
            os._exit(1)

    return arm
