"""When a pipeline's position is written to the state."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import pgoutput
from logs import STEP, LogMaker
from runnel.log.api import Lineage
from runnel.postgres.lsn import Lsn
from runnel.progress.position import Position
from runnel.spark import progress as module
from runnel.spark.progress import EMPTY_STEP, Progress
from runnel.spark.receipts import BatchReport, TaskReport

START = Lsn(1000)


class FakeState:
    def __init__(self) -> None:
        self.stored: list[tuple[Lsn, int]] = []
        self.held: list[Lsn | None] = []

    def store_position(self, pipeline: str, position: Position, changes: int) -> None:
        self.stored.append((position.lsn, changes))

    def hold(self, pipeline: str, lsn: Lsn | None) -> None:
        self.held.append(lsn)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def begun(*, holds_position: bool) -> tuple[Progress, Any]:
    progress = Progress("p", None)  # type: ignore[arg-type]
    progress.begin(Position(Lineage("7", 1, "s"), 1, START), START, holds_position=holds_position)
    return progress, FakeState()


def batch(progress: Progress, end: int, *, changes: int = 5, durable: int | None = None) -> None:
    report = TaskReport(0, progress.accepted, Lsn(end), captured=changes, changes=changes)
    progress.committed(BatchReport([report]), Lsn(end if durable is None else durable))


def test_a_sink_without_a_record_of_its_own_has_every_batch_stored(clock: list[float]) -> None:
    progress, state = begun(holds_position=False)
    for end in (1100, 1200):
        batch(progress, end)
        progress.store(state)
    assert state.stored == [(1100, 5), (1200, 5)]


def test_a_sink_with_its_own_record_is_stored_once_a_second(clock: list[float]) -> None:
    progress, state = begun(holds_position=True)
    for end in (1100, 1200, 1300):
        batch(progress, end)
        progress.store(state)
    assert state.stored == [(1100, 5)]
    clock[0] += 1.0
    progress.store(state)
    assert state.stored == [(1100, 5), (1300, 10)]


def test_passing_over_nothing_is_stored_only_after_a_while_or_at_the_end(clock: list[float]) -> None:
    progress, state = begun(holds_position=False)
    batch(progress, 1100, changes=0)
    progress.store(state)
    assert not state.stored
    batch(progress, 1000 + EMPTY_STEP, changes=0)
    progress.store(state)
    assert state.stored == [(1000 + EMPTY_STEP, 0)]
    batch(progress, 1100 + EMPTY_STEP, changes=0)
    progress.store(state, stopping=True)
    assert state.stored[-1] == (1100 + EMPTY_STEP, 0)


def test_what_is_accepted_but_not_durable_is_not_stored_until_it_is(clock: list[float]) -> None:
    progress, state = begun(holds_position=True)
    batch(progress, 1100, durable=1000)
    progress.store(state)
    assert not state.stored
    clock[0] += 5
    progress.durable = Lsn(1100)
    progress.store(state)
    assert state.stored == [(1100, 5)]


def test_a_sink_that_is_ahead_of_the_state_brings_it_up(clock: list[float]) -> None:
    progress = Progress("p", None)  # type: ignore[arg-type]
    progress.begin(Position(Lineage("7", 1, "s"), 2, Lsn(1500)), START, holds_position=True)
    state: Any = FakeState()
    progress.store(state)
    assert state.stored == [(1500, 0)]


def test_a_replay_lets_go_of_the_log_as_it_passes_and_wholly_where_it_began(clock: list[float]) -> None:
    progress, state = begun(holds_position=True)
    progress.begin(Position(Lineage("7", 1, "s"), 2, Lsn(500)), START, holds_position=True)
    batch(progress, 600)
    progress.store(state)
    assert state.held == []
    clock[0] += 5.0
    progress.store(state)
    assert state.held == [600]
    batch(progress, 1000)
    progress.store(state)
    progress.store(state)
    assert state.held == [600, None]
    assert state.stored == []


def watching(maker: LogMaker, at: int, *, clock: float | None = None) -> Progress:
    progress = Progress("p", maker.log)
    position = Position(Lineage("7", 1, "s"), 1, Lsn(at))
    progress.begin(position, position.lsn, holds_position=True, clock=clock)
    return progress


def told(progress: Progress) -> tuple[str, str | None]:
    return progress.state(), progress.why


def test_a_position_behind_the_end_of_a_log_that_was_made_anew_waits_for_it(tmp_path: Path) -> None:
    maker = LogMaker(tmp_path / "log")
    end = maker.append(1)
    progress = watching(maker, end + STEP)
    progress.observe()
    assert progress.state() == "waiting"
    assert progress.why == f"for the change log, which ends at {end}, to reach {Lsn(end + STEP)}"
    maker.append(2)
    progress.observe()
    assert told(progress) == ("catching up", None)


def test_a_pipeline_with_nothing_to_do_waits_for_a_capture_that_does_not_run(
    tmp_path: Path, clock: list[float]
) -> None:
    maker = LogMaker(tmp_path / "log")
    progress = watching(maker, maker.append(1))
    progress.observe(lambda: False)
    assert progress.state() == "live"  # it may be being started
    clock[0] += module.CAPTURE_SECONDS
    progress.observe(lambda: False)
    assert told(progress) == ("waiting", "for capture, which is not running")
    progress.observe(lambda: True)
    assert progress.state() == "live"
    clock[0] += module.CAPTURE_SECONDS
    maker.append(1)
    progress.observe(lambda: False)
    assert progress.state() == "catching up"


def test_a_capture_that_is_away_for_a_moment_after_a_busy_time_is_not_waited_for(
    tmp_path: Path, clock: list[float]
) -> None:
    maker = LogMaker(tmp_path / "log")
    progress = watching(maker, maker.start)
    end = maker.append(1)
    progress.observe()
    clock[0] += 600.0
    progress.accepted = Lsn(end)
    progress.observe(lambda: False)
    assert progress.why is None
    clock[0] += module.CAPTURE_SECONDS
    progress.observe(lambda: False)
    assert progress.why is not None


@pytest.mark.parametrize("ahead", [-600.0, 600.0])
def test_commit_times_are_compared_with_the_clock_of_their_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    maker = LogMaker(tmp_path / "log")
    committed = pgoutput.EPOCH / 1e6
    monkeypatch.setattr(time, "time", lambda: committed + 2 - ahead)
    progress = watching(maker, maker.start, clock=committed + 2)
    maker.append(1)
    progress.observe()
    assert progress.state() == "live"
    assert progress._lag_seconds == pytest.approx(2.0)
