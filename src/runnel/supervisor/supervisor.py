"""The supervisor: starts capture and the pipelines, brings back what dies, ends in order.

What comes in: a configuration, the pipelines to run, whether only up to now. What goes out: the exit
code; on stderr what happens; on stdout nothing but what a stdout sink writes.

What must hold:
- a child that dies or fails is started again with back-off, for `--once` within a minute; one that
  says it is no use (exit code 2 or 3) is not;
- the end is in order: pipelines finish their batch and store their positions, then capture gives its
  last feedback, so that the slot shows what may be confirmed;
- nothing depends on this process: killed, it takes its children along and the next run goes on.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from types import FrameType

from ..config import Config
from ..errors import Kind, RunnelError
from ..events import relay
from .child import REFUSED, Child, Event, Said
from .display import Display, Shown, make_display
from .handover import hand_over
from .once import mark_now, refuse_paused
from .patience import ONCE_PATIENCE, Patience

LOOK = 0.1
STOP_PIPELINES = 120.0
"""Seconds a running batch may take to finish."""
STOP_CAPTURE = 30.0

CAPTURE, PIPELINES = "capture", "pipelines"


class Supervisor:
    def __init__(
        self,
        config: Config,
        pipelines: Sequence[str],
        *,
        once: bool = False,
        plain: bool = False,
    ) -> None:
        self._config = config
        self._pipelines = list(pipelines)
        self._once = once
        self._said: SimpleQueue[Said] = SimpleQueue()
        self._shown = {name: Shown() for name in (CAPTURE, *self._pipelines)}
        self._display: Display = make_display(self._shown, plain=plain)
        self._asked = 0
        self._preparing = False
        self._patience = Patience()

    def run(self, prepare: Callable[[], None]) -> int:
        """`prepare` makes what is missing at the source (the implied `init`)."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        until: list[str] = []
        try:
            self._preparing = True
            self._patiently(prepare)
            if self._once:
                self._patiently(lambda: refuse_paused(self._config, self._pipelines))
                self._patiently(lambda: until.append(str(mark_now(self._config.source_url))))
            self._preparing = False
        except KeyboardInterrupt:  # what is half made at the source, the next `init` finishes
            return 0
        if self._asked:
            return 0
        with hand_over(self._config) as file:
            bound = ["--until", until[0]] if until else []
            confirm = ["--confirm"] if bound else []
            capture = Child(CAPTURE, ["capture", *confirm], file, self._said)
            pipelines = Child(PIPELINES, ["pipeline", *self._pipelines, *bound], file, self._said)
            self._display.begin()
            try:
                for child in (capture, pipelines):
                    child.start()
                self._supervise(capture, pipelines)
                return 0
            finally:
                self._stop(pipelines, STOP_PIPELINES)
                self._stop(capture, STOP_CAPTURE)
                self._hear(0)
                self._display.end()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._asked += 1
        if self._preparing:  # nothing runs yet, and the step may be waiting for somebody's transaction
            self._preparing = False
            raise KeyboardInterrupt

    # the two children

    def _supervise(self, capture: Child, pipelines: Child) -> None:
        """Returns when it was asked to end, or everything is done; raises what ends it otherwise."""
        while not self._asked:
            self._hear(LOOK)
            for child in (capture, pipelines):
                code = child.exit_code()
                if code is not None:
                    if child is pipelines and code == 0 and self._once:
                        self._confirm(capture)
                        return
                    if code in REFUSED:
                        raise self._reason(child, code)
                    self._ended(child, code)
                elif child.process is None and time.monotonic() >= child.restart_at:
                    child.start()
            enough = self._patience.look(self._shown, time.monotonic()) if self._once else None
            if enough is not None:
                raise enough

    def _ended(self, child: Child, code: int) -> None:
        """It shall come back."""
        pause = child.back_off()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        for name in self._names(child):
            shown = self._shown[name]
            state = "reconnecting" if child.name == CAPTURE else "retrying"
            if shown.state == state and shown.error and child.error is None:
                continue  # it said why itself
            what, hint = child.error or (f"its process {how}; it starts again in {pause:.1f} s", "")
            value = {"event": "state", "who": name, "state": state, "error": what, "hint": hint}
            self._take(Event(child.name, value))

    def _names(self, child: Child) -> list[str]:
        return [CAPTURE] if child.name == CAPTURE else self._pipelines

    def _reason(self, child: Child, code: int) -> RunnelError:
        """Why a child that is not started again ended, in its own words."""
        kind = Kind.USAGE if code == 2 else Kind.FAILED
        if child.error is not None:
            return RunnelError(child.error[0], hint=child.error[1], kind=kind)
        for name in self._names(child):
            shown = self._shown[name]
            if shown.state == "failed" and shown.error:
                who = "capture" if name == CAPTURE else f"pipeline {name}"
                return RunnelError(f"{who}: {shown.error}", hint=shown.hint, kind=kind)
        return RunnelError(
            f"{child.name} ended with exit code {code}", hint="--debug shows more", kind=kind
        )

    def _confirm(self, capture: Child) -> None:
        """Everything is delivered: let capture tell the slot, also if it was just being brought back."""
        deadline = time.monotonic() + ONCE_PATIENCE
        while time.monotonic() < deadline:
            if capture.process is None and time.monotonic() >= capture.restart_at:
                capture.start()
                self._shown[CAPTURE].state = "starting"
            if self._shown[CAPTURE].state in {"streaming", "paused"}:
                capture.terminate()
            self._hear(LOOK)
            code = capture.exit_code()
            if code == 0:
                return
            if code in REFUSED:
                raise self._reason(capture, code)
            if code is not None:
                capture.back_off()
        raise RunnelError(
            "everything was delivered, but the slot could not be told within a minute",
            hint="run it again: it begins where this one ended",
        )

    def _stop(self, child: Child, patience: float) -> None:
        """Ask it to finish; a second signal to us is a wish to end at once."""
        child.terminate()
        deadline = time.monotonic() + patience
        asked = self._asked
        while child.alive and time.monotonic() < deadline and self._asked <= max(asked, 1):
            self._hear(LOOK)
        child.kill()
        child.exit_code()

    # listening

    def _hear(self, seconds: float) -> None:
        """Take what the children said, waiting up to `seconds` for the first word."""
        try:
            self._take(self._said.get(timeout=seconds) if seconds else self._said.get_nowait())
            while True:
                self._take(self._said.get_nowait())
        except Empty:
            return

    def _take(self, said: Said) -> None:
        if not isinstance(said, Event):
            self._display.line(said.text)
            return
        relay(said.value)
        who = str(said.value.get("who"))
        shown = self._shown.get(who)
        if shown is not None:
            shown.take(said.value)
            self._display.event(who, said.value, shown)

    # steps at the source

    def _patiently(self, step: Callable[[], None]) -> None:
        """A step at the source: `run` waits for it as long as it takes, `--once` a minute."""
        deadline = time.monotonic() + ONCE_PATIENCE
        pause = 0.5
        while not self._asked:
            try:
                step()
            except RunnelError as error:
                if error.kind is not Kind.TRANSIENT or (self._once and time.monotonic() > deadline):
                    raise
                value = {"event": "state", "who": CAPTURE, "state": "reconnecting"}
                self._take(Event(CAPTURE, value | {"error": error.message, "hint": error.hint}))
            else:
                return
            waited = time.monotonic() + pause
            while not self._asked and time.monotonic() < waited:
                time.sleep(LOOK)
            pause = min(10.0, pause * 2)
