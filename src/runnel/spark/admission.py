"""Where the next micro-batch ends, and how its chunks are shared among tasks. No Spark in here.

What comes in: the log's chunks after a position. What goes out: an end (always the end of a chunk,
so of a transaction, with all parts of it) and, per task, the chunks it works on.

What must hold: batches grow with the backlog up to `max_bytes` (one chunk is always taken, however
large); a chunk with a schema change is a batch of its own; nothing is offered past the chunk that
reaches `until`; nothing is offered while `held()` says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import takewhile

from ..errors import Refused
from ..log.api import ChangeLog, ChunkRef
from ..postgres.lsn import Lsn

LOOK = 0.008
"""Seconds between two looks at the log while waiting."""
WAIT = 0.5
"""The longest a look-out blocks: an idle query then costs one empty trigger, not a hundred."""
ASLEEP_AFTER = 5.0
"""Seconds without a chunk after which it looks and returns less often: idle costs half, and the first
change after it waits 8 ms longer on average."""
ASLEEP_LOOK = 0.025
ASLEEP_WAIT = 2.0
MAX_CHUNKS = 2000
"""Chunks of a trickle are small; a batch that names too many costs more to plan than to do."""
DRAIN_BYTES = 4 << 20
"""A batch of at least this size means that a backlog is being drained."""
DRAIN_CHUNKS = 8
DRAIN_WAIT = 0.3
"""While draining it pays to wait a little for a larger batch: a third less CPU in all (measured)."""
SHARE_BYTES = 4 << 20
"""A task costs more than it saves below this."""


@dataclass(frozen=True, slots=True)
class Limits:
    max_bytes: int = 256 << 20
    linger: float = 0.0
    """Seconds to wait for more after the first new chunk was seen."""
    until: Lsn | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """What one task of a batch does; pickled into its input partition."""

    index: int
    start: Lsn
    end: Lsn
    """Of the batch."""
    chunks: tuple[str, ...]
    captured: int
    """Changes in the chunks, as captured."""
    bytes: int
    of: int = 1
    """More than 1: all these tasks have the same chunks and divide the changes by key (keyed.py)."""


class Admission:
    """The look-out of one query: remembers the chunks it saw, so that a look costs one look-up."""

    def __init__(self, log: ChangeLog, limits: Limits, held: Callable[[], bool] = lambda: False) -> None:
        self._log = log
        self._limits = limits
        self._held = held
        self._seen: list[ChunkRef] = []
        self._start: Lsn | None = None
        self._last_bytes = 0
        self._last_chunk_at = time.monotonic()

    def next_end(self, start: Lsn, wait: float | None = None) -> Lsn:
        """The end of the next batch after `start`; `start` itself if nothing came within `wait`."""
        limits = self._limits
        asleep = time.monotonic() - self._last_chunk_at > ASLEEP_AFTER
        if wait is None:
            wait = ASLEEP_WAIT if asleep else WAIT
        deadline = time.monotonic() + wait
        first_seen: float | None = None
        while True:
            now = time.monotonic()
            if not self._held() and (limits.until is None or start < limits.until):
                refs, full = self._cut(start)
                if refs:
                    first_seen = now if first_seen is None else first_seen
                    if full or now - first_seen >= self._patience(len(refs)):
                        if self._held():  # asked while we lingered
                            return start
                        self._last_bytes = sum(ref.bytes for ref in refs)
                        self._last_chunk_at = now
                        return refs[-1].end
            else:
                first_seen = None
            if first_seen is None and now >= deadline:
                self._last_bytes = 0
                return start
            time.sleep(ASLEEP_LOOK if asleep and first_seen is None else LOOK)

    def chunks(self, start: Lsn, end: Lsn, *, whole: bool = True) -> list[ChunkRef]:
        """Exactly the chunks of (start, end]; unless they must be whole, the last may reach further."""
        self._look(start)
        refs = [ref for ref in self._seen if ref.start < end]
        if not refs or refs[-1].end < end:  # a planner that began anew knows nothing of the batch yet
            refs = list(takewhile(lambda ref: ref.start < end, chain(self._log, start)))
        if not refs or refs[-1].end < end or (whole and refs[-1].end > end):
            raise Refused(
                f"the change log {self._log.path} does not hold {start} to {end} any more",
                hint="start the query again with a new checkpoint directory, or from `earliest`",
            )
        return refs

    def _patience(self, chunks: int) -> float:
        if self._last_bytes >= DRAIN_BYTES and chunks < DRAIN_CHUNKS:
            return max(self._limits.linger, DRAIN_WAIT)
        return self._limits.linger

    def _look(self, start: Lsn) -> None:
        """Bring `_seen` up to date: whole chunks from `start` on, no more than a batch can take."""
        if self._start != start:
            self._seen = [ref for ref in self._seen if ref.end > start]
            if self._seen and self._seen[0].start > start:
                self._seen = []
            self._start = start
        size = sum(ref.bytes for ref in self._seen)
        if size >= self._limits.max_bytes or len(self._seen) >= MAX_CHUNKS:
            return
        for ref in chain(self._log, self._seen[-1].end if self._seen else start):
            self._seen.append(ref)
            size += ref.bytes
            last_part = ref.part == ref.parts - 1
            if last_part and (size >= self._limits.max_bytes or len(self._seen) >= MAX_CHUNKS):
                break

    def _cut(self, start: Lsn) -> tuple[list[ChunkRef], bool]:
        """The chunks of the next batch, and whether more could not join it anyway."""
        self._look(start)
        taken: list[ChunkRef] = []
        size = 0
        at = 0
        while at < len(self._seen):
            group = self._seen[at : at + self._seen[at].parts]
            at += len(group)
            group_size = sum(ref.bytes for ref in group)
            alone = any(ref.schema_change for ref in group)
            if taken and (alone or size + group_size > self._limits.max_bytes):
                return taken, True
            taken += group
            size += group_size
            if alone or len(taken) >= MAX_CHUNKS:
                return taken, True
            if self._limits.until is not None and group[-1].end >= self._limits.until:
                return taken, True
        return taken, False


def chain(log: ChangeLog, after: Lsn) -> Iterator[ChunkRef]:
    """The log's chunks from `after` on; 0 stands for the beginning of a log that was still empty."""
    if not after:
        first = log.usage().first
        return iter(()) if first is None else log.chunks(first)
    return log.chunks(after)


def shares_by_key(start: Lsn, end: Lsn, refs: list[ChunkRef], tasks: int) -> list[Share]:
    """Every task has all chunks of the batch. A schema change, which concerns every key, is one task's.
    What was captured is counted once."""
    (whole,) = shares(start, end, refs, 1)
    count = max(1, min(tasks, whole.bytes // SHARE_BYTES))
    if count == 1 or any(ref.schema_change for ref in refs):
        return [whole]
    return [
        replace(whole, index=index, of=count, captured=0 if index else whole.captured)
        for index in range(count)
    ]


def shares(start: Lsn, end: Lsn, refs: list[ChunkRef], tasks: int) -> list[Share]:
    """Split the chunks of a batch among at most `tasks` tasks: contiguous, of about equal bytes, in
    commit order. At least one task, also when all chunks are empty: its receipt moves the position."""
    total = sum(ref.bytes for ref in refs)
    count = max(1, min(tasks, len(refs), total // SHARE_BYTES))
    groups: list[list[ChunkRef]] = [[] for _ in range(count)]
    before = 0
    for ref in refs:
        middle = before + ref.bytes // 2
        groups[min(count - 1, middle * count // max(total, 1))].append(ref)
        before += ref.bytes
    groups = [group for group in groups if group]
    return [
        Share(
            index=index,
            start=start,
            end=end,
            chunks=tuple(ref.name for ref in group),
            captured=sum(ref.changes for ref in group),
            bytes=sum(ref.bytes for ref in group),
        )
        for index, group in enumerate(groups)
    ]
