"""The sink's Protocol: where a pipeline writes, what it can promise, and who commits.

A sink has two halves. The *driver* half (`Sink`) lives in the pipeline's own process: it owns the
target's position and publishes. The *task* half (`Writer`) is made anew for each attempt of each
task, decodes nothing, sees windows in commit order, and never publishes under the staged plan.
Between them go receipts: small JSON values, one per task.

What must hold, for every sink (tests/contract/sinks.py proves it):
- `commit` of (start, end] compares the target's record with `start`: equal, it applies; at or past
  `end`, it skips and says so; anything else raises `Refused`;
- a commit that did its work and then failed is repeated without harm;
- an attempt that is not named by a receipt leaves nothing that a reader sees;
- accepted is not durable: `commit` returns the LSN up to which the target has it for good, which
  may lie before the batch's end (a Parquet file still open), never after it;
- a second owner (higher epoch) takes over; the first one's next commit raises `Refused`;
- nothing is passed without a record. A task whose writer rejected anything never calls `finish`, under
  no plan: it aborts, the driver stops or stores the letters, and the batch runs again without them.
  Under `single`, where `finish` commits, it is not called either while a change that is left out (its
  key is parked) is not yet stored as a letter: the task aborts and hands the letters to the driver, which
  stores them and runs the batch again; their names then stand in what the task is told, and it finishes;
- dead letters that are delivered again come beside the stream: the position stays, and a target that
  holds it names them in the same commit, so that a repetition knows what is there already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from ..changes.block import Window
from ..postgres.lsn import Lsn
from ..progress.position import Position

Name = tuple[Lsn, int]
"""(lsn, seq): names a change."""


class Plan(StrEnum):
    """How tasks share a batch."""

    STAGED = "staged"
    """In parallel, by chunk; tasks stage, the driver publishes what the receipts name."""
    SINGLE = "single"
    """One task applies the whole batch in the target's own transaction, with the position."""
    KEYED = "keyed"
    """Within a batch a (table, key) is always handled by the same task, in order, and batches follow one
    another; writes show at once. A table without a key is one task's, and a batch in which a row gets
    another key, a table is truncated or altered is the first task's as a whole."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    plan: Plan
    holds_position: bool
    """The target keeps the position in its own commit: exactly once. Else `runnel.progress` does."""
    guarantee: str
    """One sentence for users: exactly once, or at least once with (lsn, seq) to drop repeats by."""
    max_record_bytes: int | None = None
    upsert: bool = False
    schema_changes: bool = False
    default_json: bool = False
    """It writes Runnel's default JSON, which letters hold: its writer is a `LetterWriter`."""


@dataclass(frozen=True, slots=True)
class Batch:
    start: Lsn
    end: Lsn
    first_time: int
    last_time: int
    """Commit times (µs since 1970) of its first and last transaction, 0 for an empty batch."""


@dataclass(frozen=True, slots=True)
class Reject:
    """A change that this sink can never take. The driver stops or makes it a dead letter."""

    lsn: Lsn
    seq: int
    table: str
    key: str | None
    """The key as JSON text; None: the table has none."""
    change: str
    """The change in Runnel's default JSON."""
    reason: str
    old_key: str | None = None
    """The key it moves the row away from. Not the sink's to say: whoever takes out parked keys sees it."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one task did."""

    index: int
    """The task's number in the batch: receipts sorted by it are in commit order."""
    changes: int
    payload: Mapping[str, Any]
    """The sink's own words from `Writer.finish` to `Sink.commit`; JSON."""
    rejects: tuple[Reject, ...] = ()


@dataclass(frozen=True, slots=True)
class Attempt:
    """Names one attempt of one task: nothing that two attempts write may collide."""

    start: Lsn
    end: Lsn
    index: int
    attempt: str
    """Unique over all attempts, runs and machines."""
    letters: tuple[Name, ...] = ()
    """Not a batch, but these letters once more. A writer that commits by itself (`single`) leaves the
    position where it is and names them in the target's record instead."""


class Writer(Protocol):
    def write(self, window: Window) -> Sequence[Reject]:
        """Take a window; give back what can never be taken. Raise for anything a retry can mend."""
        ...

    def finish(self) -> Mapping[str, Any]:
        """Everything written is durable where it is staged (or applied, under `single` with the position):
        the receipt's payload. Called only if nothing was rejected, and all that was left out is stored."""
        ...

    def abort(self) -> None:
        """Clean up after a failed attempt, or one with rejects, as far as possible; under `staged` and
        `single` nothing of it is ever seen. May not raise."""
        ...


class LetterWriter(Writer, Protocol):
    def write_letters(self, letters: Sequence[Reject]) -> Sequence[Reject]:
        """Take changes as the text that they are; give back what can still not be taken."""
        ...


class Sink(Protocol):
    capabilities: Capabilities

    def open(self, position: Position) -> Position:
        """Become the owner. `position` is what `runnel.progress` knows, with this owner's epoch.
        Gives back the authority: the target's own record if it holds one (under the new epoch), else
        `position`. Removes what an earlier owner left uncommitted. `Refused` if the target belongs
        to a lineage that `position.owns` does not know, or to a later owner; or if it holds no record
        though the pipeline had begun (`SinkContext.begun`): it was lost, and with it what was delivered."""
        ...

    def task(self) -> Mapping[str, Any]:
        """What `writer()` of this sink's module needs in a task: JSON, without secrets."""
        ...

    def commit(self, batch: Batch, receipts: Sequence[Receipt]) -> Lsn:
        """Publish; see the rules above. Returns the durable LSN."""
        ...

    def tick(self) -> Lsn:
        """Called about once a second between batches: close what is old enough. The durable LSN."""
        ...

    def flush(self) -> Lsn:
        """Make everything accepted durable and readable (end of `--once`, stop)."""
        ...

    def reposition(self, lsn: Lsn) -> None:
        """After `open`: the target's record says `lsn` from now on, on purpose. What is written stays.
        Back, for a replay: what follows `lsn` is written again. Forward, for a pipeline that was removed
        and registered anew: what lies before is left out. Nothing to do without a record."""
        ...

    def redelivered(self) -> frozenset[Name]:
        """After `open`: the letters that the last `redeliver` published. Empty without a record."""
        ...

    def redeliver(self, names: Sequence[Name], receipts: Sequence[Receipt]) -> None:
        """Publish letters beside the stream, durable on return, and name them, and only them, in the
        target's record, in one commit. The position stays. No names: only forget the last ones."""
        ...

    def close(self) -> None: ...
