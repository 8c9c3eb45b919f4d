"""A guard for the source's disk: how much WAL the slot holds back, against `source.max_retained`.

What must hold: it warns once at 80 %. At 100 % it stops capture with a remedy, but not while the slot
moves: a capture that comes back after a long night must be allowed to catch up.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from ..errors import Refused
from ..postgres.lsn import Lsn
from .start import SlotFacts

_log = logging.getLogger(__name__)

_STANDSTILL = 60.0
"""Seconds without any acknowledgement after which the slot counts as standing still. Spark must be able to
start within them, and the largest batch to be delivered: else no restart could ever catch up."""


class RetentionGuard:
    def __init__(self, limit: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._warned = False
        self._acknowledged = Lsn(0)
        self._moved = clock()

    def look(self, slot: SlotFacts, current: Lsn, acknowledged: Lsn) -> None:
        if slot.invalidation or slot.wal_status == "lost":
            raise Refused(
                f"slot {slot.name!r} was invalidated by the server"
                f" ({slot.invalidation or 'its WAL was removed'}): changes are gone",
                hint="start afresh: runnel destroy && runnel init, then import again;"
                " and raise max_slot_wal_keep_size or idle_replication_slot_timeout",
            )
        if acknowledged > self._acknowledged:
            self._acknowledged, self._moved = acknowledged, self._clock()
        if self._limit is None or slot.restart is None:
            return
        retained = current - slot.restart
        sentence = f"slot {slot.name!r} holds back {retained:,} bytes of WAL on the source"
        mend = "let the pipeline that is behind catch up, `runnel remove` it, or raise source.max_retained"
        if retained >= self._limit and self._clock() - self._moved >= _STANDSTILL:
            raise Refused(f"{sentence}, source.max_retained allows {self._limit:,}", hint=mend)
        if retained < self._limit * 0.7:
            self._warned = False
        elif retained >= self._limit * 0.8 and not self._warned:
            self._warned = True
            _log.warning(
                "%s, source.max_retained stops capture at %s: %s", sentence, f"{self._limit:,}", mend
            )
