"""Where batches end and how their chunks are shared, without Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from runnel.errors import Refused
from runnel.log.api import ChunkRef
from runnel.postgres.lsn import Lsn
from runnel.spark import admission
from runnel.spark.admission import Admission, Limits, shares

MIB = 1 << 20


def chunk(
    start: int, end: int, *, size: int = 1000, part: int = 0, parts: int = 1, **more: Any
) -> ChunkRef:
    return ChunkRef(
        f"{start:016X}.{part:05d}.chunk",
        Lsn(start),
        Lsn(end),
        part,
        parts,
        size,
        more.get("changes", 10),
        0,
        more.get("schema_change", False),
    )


class FakeLog:
    path = "/log"

    def __init__(self, *refs: ChunkRef) -> None:
        self.refs = list(refs)
        self.looks = 0
        self.listed = 0

    def chunks(self, after: Lsn) -> Iterator[ChunkRef]:
        self.looks += 1
        for ref in self.refs:
            if ref.end > after:
                self.listed += 1
                yield ref

    def usage(self) -> Any:
        return SimpleNamespace(first=self.refs[0].start if self.refs else None)


def look_out(log: FakeLog, **limits: Any) -> Admission:
    return Admission(log, Limits(**limits))  # type: ignore[arg-type]


def test_a_batch_takes_everything_there_is() -> None:
    log = FakeLog(chunk(10, 20), chunk(20, 30), chunk(30, 40))
    assert look_out(log).next_end(Lsn(10)) == 40


def test_a_position_inside_a_chunk_begins_with_that_chunk() -> None:
    log = FakeLog(chunk(10, 20), chunk(20, 30))
    batch = look_out(log)
    assert batch.next_end(Lsn(15)) == 30
    assert [ref.start for ref in batch.chunks(Lsn(15), Lsn(30))] == [10, 20]


def test_a_batch_ends_before_the_chunk_that_would_make_it_too_large() -> None:
    log = FakeLog(chunk(10, 20, size=60), chunk(20, 30, size=30), chunk(30, 40, size=30))
    batch = look_out(log, max_bytes=100)
    assert batch.next_end(Lsn(10)) == 30
    assert batch.next_end(Lsn(30)) == 40


def test_a_chunk_larger_than_the_limit_is_still_taken() -> None:
    log = FakeLog(chunk(10, 20, size=500), chunk(20, 30))
    assert look_out(log, max_bytes=100).next_end(Lsn(10)) == 20


def test_all_parts_of_a_chunk_stay_together() -> None:
    parts = [chunk(20, 30, size=80, part=part, parts=3) for part in range(3)]
    log = FakeLog(chunk(10, 20, size=50), *parts, chunk(30, 40))
    batch = look_out(log, max_bytes=100)
    assert batch.next_end(Lsn(10)) == 20
    assert batch.next_end(Lsn(20)) == 30
    assert len(batch.chunks(Lsn(20), Lsn(30))) == 3


def test_a_schema_change_is_a_batch_of_its_own() -> None:
    log = FakeLog(chunk(10, 20), chunk(20, 30, schema_change=True), chunk(30, 40))
    batch = look_out(log)
    assert [int(batch.next_end(Lsn(at))) for at in (10, 20, 30)] == [20, 30, 40]


def test_nothing_is_offered_past_the_chunk_that_reaches_the_bound() -> None:
    log = FakeLog(chunk(10, 20), chunk(20, 30), chunk(30, 40))
    batch = look_out(log, until=Lsn(25))
    assert batch.next_end(Lsn(10)) == 30
    assert batch.next_end(Lsn(30), wait=0.02) == 30


def test_nothing_is_offered_while_held() -> None:
    log = FakeLog(chunk(10, 20))
    held = [True]
    batch = Admission(log, Limits(), lambda: held[0])  # type: ignore[arg-type]
    assert batch.next_end(Lsn(10), wait=0.02) == 10
    held[0] = False
    assert batch.next_end(Lsn(10), wait=0.02) == 20


def test_an_idle_look_out_waits_and_then_says_so() -> None:
    log = FakeLog(chunk(10, 20))
    began = time.monotonic()
    assert look_out(log).next_end(Lsn(20), wait=0.05) == 20
    assert time.monotonic() - began >= 0.05
    assert log.looks > 1


def test_a_trickle_goes_at_once_and_a_backlog_waits_for_a_larger_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    naps: list[float] = []
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def nap(seconds: float) -> None:
        naps.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(time, "sleep", nap)
    log = FakeLog(chunk(10, 20))
    batch = look_out(log)
    assert batch.next_end(Lsn(10)) == 20
    assert not naps
    log.refs.append(chunk(20, 30, size=8 * MIB))
    assert batch.next_end(Lsn(20)) == 30
    assert not naps
    log.refs.append(chunk(30, 40))
    assert batch.next_end(Lsn(30)) == 40
    assert sum(naps) == pytest.approx(admission.DRAIN_WAIT, abs=0.02)


def test_planning_looks_no_further_than_a_batch_can_reach() -> None:
    log = FakeLog(*(chunk(at, at + 1, size=MIB) for at in range(10, 1000)))
    batch = look_out(log, max_bytes=4 * MIB)
    assert batch.next_end(Lsn(10)) == 14
    assert log.listed <= 6


def test_a_new_planner_finds_the_chunks_of_a_batch_it_never_offered() -> None:
    log = FakeLog(chunk(10, 20), chunk(20, 30), chunk(30, 40))
    assert [ref.start for ref in look_out(log).chunks(Lsn(10), Lsn(30))] == [10, 20]


def test_a_batch_that_the_log_does_not_hold_is_refused() -> None:
    log = FakeLog(chunk(10, 20))
    with pytest.raises(Refused, match="does not hold"):
        look_out(log).chunks(Lsn(10), Lsn(15))


def test_zero_is_the_beginning_of_a_log_that_was_empty() -> None:
    log = FakeLog()
    batch = look_out(log)
    assert batch.next_end(Lsn(0), wait=0.02) == 0
    log.refs.append(chunk(10, 20))
    assert batch.next_end(Lsn(0), wait=0.02) == 20


def test_shares_are_contiguous_balanced_and_in_order() -> None:
    refs = [chunk(at, at + 10, size=8 * MIB) for at in range(0, 80, 10)]
    split = shares(Lsn(0), Lsn(80), refs, tasks=2)
    assert [len(share.chunks) for share in split] == [4, 4]
    assert [name for share in split for name in share.chunks] == [ref.name for ref in refs]
    assert sum(share.captured for share in split) == 80


def test_a_small_batch_is_one_task_and_an_empty_one_too() -> None:
    refs = [chunk(0, 10), chunk(10, 20)]
    assert len(shares(Lsn(0), Lsn(20), refs, tasks=4)) == 1
    empty = [chunk(0, 10, size=0, changes=0)]
    assert [share.captured for share in shares(Lsn(0), Lsn(10), empty, tasks=4)] == [0]
