"""How far a pipeline is: accepted by the sink, durable there, stored in the state, shown to people.

What must hold: `stored` <= `durable` <= `accepted`; the state is written at most once a second for a
sink that holds its own position, after every batch for one that does not; passing over chunks in
which nothing happened is not worth a write into the source until 16 MB have passed: our own writes
must not keep an idle source awake.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ..events import emit
from ..log.api import ChangeLog, ChunkRef
from ..postgres.lsn import Lsn
from ..progress.position import Position
from ..progress.state import State
from .receipts import BatchReport
from .standing import past_end

STORE_EVERY = 1.0
HOLD_EVERY = 5.0
EMPTY_STEP = 16 << 20
RATE_SECONDS = 10.0
BEHIND_SECONDS = 10.0
LIVE_SECONDS = 3.0
CAPTURE_SECONDS = 5.0
"""A capture that is away for less is being started."""


class Progress:
    def __init__(self, pipeline: str, log: ChangeLog) -> None:
        self._pipeline = pipeline
        self._log = log
        self._position: Position | None = None
        self._holds_position = False
        self.accepted = Lsn(0)
        self.durable = Lsn(0)
        self._stored = Lsn(0)
        self._stored_at = 0.0
        self._again = False
        """It delivers what it had once: the state holds the log for it, from about here on."""
        self._held_at = 0.0
        self._changes = 0
        self._unstored_changes = 0
        self._something_since_store = False
        self._recent: deque[tuple[float, int]] = deque()
        self._lag_bytes = 0
        self._lag_seconds = 0.0
        self._behind = False
        self._clock_ahead = 0.0
        """Of the server, whose commit times are: our own clock may be another."""
        self._looks_for_end = False
        """The log may end before the position; only when a query starts: then it is not made anew."""
        self._captured_at: float | None = None
        """When capture was last seen, since there was nothing to deliver."""
        self.why: str | None = None
        """What it waits for."""
        self._told: dict[str, Any] = {}

    def begin(
        self, position: Position, stored: Lsn, *, holds_position: bool, clock: float | None = None
    ) -> None:
        """The query starts at `position`, which the sink says is the truth. `clock`: the server's, now."""
        self._clock_ahead = 0.0 if clock is None else clock - time.time()
        self._looks_for_end = True
        self._captured_at = None
        self._position = position
        self._holds_position = holds_position
        self.accepted = self.durable = position.lsn
        self._stored = stored
        self._again = position.lsn < stored
        self._held_at = time.monotonic()
        self._something_since_store = position.lsn > stored
        self._unstored_changes = 0

    def committed(self, report: BatchReport, durable: Lsn) -> None:
        self.accepted = report.end
        self.durable = durable
        self._changes += report.changes
        self._unstored_changes += report.changes
        if report.captured:
            self._something_since_store = True
            self._recent.append((time.monotonic(), report.changes))

    def store(self, state: State, *, stopping: bool = False) -> None:
        """Write the position to the state, if it is due."""
        if self._position is None:
            return
        now = time.monotonic()
        if self._again and (stopping or self.durable >= self._stored or now - self._held_at >= HOLD_EVERY):
            self._again = self.durable < self._stored
            state.hold(self._pipeline, self.durable if self._again else None)
            self._held_at = now
        if self.durable <= self._stored:
            return
        if not stopping:
            if not self._something_since_store and self.durable - self._stored < EMPTY_STEP:
                return
            if self._holds_position and now - self._stored_at < STORE_EVERY:
                return
        state.store_position(self._pipeline, self._position.at(self.durable), self._unstored_changes)
        self._stored = self.durable
        self._stored_at = now
        self._unstored_changes = 0
        self._something_since_store = self.durable < self.accepted

    def observe(self, capture_lives: Callable[[], bool] = lambda: True) -> None:
        """Look how far the log is ahead. Chunks in which nothing happened have no commit that waits."""
        waiting: ChunkRef | None = None
        self._lag_bytes, self._lag_seconds = 0, 0.0
        for number, waiting in enumerate(self._log.chunks(self.accepted) if self.accepted else ()):
            if number == 0:
                end = self._log.usage().end or waiting.end
                self._lag_bytes = max(0, end - self.accepted)
            if waiting.last_time:
                self._lag_seconds = max(0.0, time.time() + self._clock_ahead - waiting.last_time / 1e6)
                break
        limit = LIVE_SECONDS if self._behind else BEHIND_SECONDS
        self._behind = self._lag_seconds > limit
        if waiting is None:
            self.why = self._waits_for(capture_lives)
        else:
            self.why = self._captured_at = None

    def _waits_for(self, capture_lives: Callable[[], bool]) -> str | None:
        """Nothing is there to deliver: is that because nothing happens, or because nobody brings it?"""
        now = time.monotonic()
        if self._captured_at is None or capture_lives():
            self._captured_at = now
        if now - self._captured_at >= CAPTURE_SECONDS:
            return "for capture, which is not running"
        why = past_end(self._log, self.accepted) if self._looks_for_end else None
        self._looks_for_end = why is not None
        return why

    def state(self) -> str:
        if self.why is not None:
            return "waiting"
        return "catching up" if self._behind else "live"

    def rate(self) -> float:
        """Changes a second over the last ten seconds."""
        now = time.monotonic()
        while self._recent and now - self._recent[0][0] > RATE_SECONDS:
            self._recent.popleft()
        if not self._recent:
            return 0.0
        span = max(1.0, now - self._recent[0][0])
        return round(sum(changes for _, changes in self._recent) / span, 1)

    def show(self) -> None:
        emit(
            "progress",
            self._pipeline,
            lsn=str(self.durable),
            changes=self._changes,
            rate=self.rate(),
            lag_bytes=self._lag_bytes,
            lag_seconds=round(self._lag_seconds, 2),
        )

    def changed_state(self, fields: dict[str, Any]) -> bool:
        changed = fields != self._told
        self._told = fields
        return changed
