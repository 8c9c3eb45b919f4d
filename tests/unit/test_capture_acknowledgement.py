"""What the slot may forget, what the log may drop, who holds both, and when too much is held."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from runnel.capture.acknowledgement import Carried, carry, excess, holdings
from runnel.capture.retention import RetentionGuard
from runnel.capture.start import SlotFacts
from runnel.errors import Refused
from runnel.log.api import ChunkRef, Usage
from runnel.postgres.lsn import Lsn


class Log:
    """Chunks as (start, end, changes), each of 100 bytes."""

    def __init__(self, *chunks: tuple[int, int, int]) -> None:
        self.refs = [
            ChunkRef(f"{start}", Lsn(start), Lsn(end), 0, 1, 100, changes, 0, False)
            for start, end, changes in chunks
        ]

    def chunks(self, after: Lsn) -> Iterator[ChunkRef]:
        if self.refs and after < self.refs[0].start:
            raise Refused("before the log")
        return iter([ref for ref in self.refs if ref.end > after])

    def usage(self) -> Usage:
        return Usage(100 * len(self.refs), len(self.refs), self.refs[0].start, self.refs[-1].end)


def held(log: Log, positions: dict[str, int], ack: str = "sink") -> tuple[int, int, str | None]:
    end = log.refs[-1].end
    carried = Carried(log)  # type: ignore[arg-type]
    found = holdings(carried, end, {name: Lsn(lsn) for name, lsn in positions.items()}, ack=ack)
    return found.acknowledge, found.trim, found.holder


def test_a_position_is_carried_over_chunks_in_which_nothing_happened() -> None:
    log = Log((0, 10, 5), (10, 20, 0), (20, 30, 0), (30, 40, 2), (40, 50, 0))
    assert carry(log, Lsn(10)) == 30  # type: ignore[arg-type]
    assert carry(log, Lsn(15)) == 30  # type: ignore[arg-type]
    assert carry(log, Lsn(5)) == 5  # type: ignore[arg-type]
    assert carry(log, Lsn(40)) == 50  # type: ignore[arg-type]
    assert carry(log, Lsn(60)) == 60  # type: ignore[arg-type]


def test_a_position_before_the_log_is_not_carried() -> None:
    assert carry(Log((10, 20, 0)), Lsn(5)) == 5  # type: ignore[arg-type]


def test_what_was_carried_once_is_not_walked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log((0, 10, 5), (10, 20, 0), (20, 30, 0))
    asked: list[int] = []
    chunks = log.chunks

    def asking(after: Lsn) -> Iterator[ChunkRef]:
        asked.append(int(after))
        return chunks(after)

    monkeypatch.setattr(log, "chunks", asking)
    carried = Carried(log)  # type: ignore[arg-type]
    assert [carried.of("a", Lsn(10)), carried.of("a", Lsn(10)), carried.of("a", Lsn(20))] == [30, 30, 30]
    log.refs += Log((30, 40, 0), (40, 50, 1), (50, 60, 0)).refs
    assert carried.of("a", Lsn(10)) == 40
    assert carried.of("b", Lsn(20)) == 40
    assert carried.of("a", Lsn(50)) == 60  # it went on
    assert carried.of("a", Lsn(5)) == 5  # it was sent back
    assert carried.of("a", Lsn(10)) == 40
    assert asked == [10, 30, 30, 30, 20, 50, 5, 10]


def test_the_slowest_pipeline_decides_and_is_named() -> None:
    log = Log((0, 10, 5), (10, 20, 1), (20, 30, 1))
    assert held(log, {"a": 30, "b": 10}) == (10, 10, "b")


def test_trimming_goes_by_bare_positions_acknowledging_by_carried_ones() -> None:
    log = Log((0, 10, 5), (10, 20, 0), (20, 30, 0))
    assert held(log, {"a": 10}) == (30, 10, None)


def test_nothing_past_the_logs_end_is_acknowledged() -> None:
    assert held(Log((0, 10, 5)), {"a": 500}) == (10, 500, None)


def test_without_pipelines_nobody_needs_anything() -> None:
    assert held(Log((0, 10, 5)), {}) == (10, 10, None)


def test_with_ack_log_the_logs_end_counts_and_pipelines_still_hold_the_log() -> None:
    assert held(Log((0, 10, 5), (10, 20, 1)), {"a": 10}, "log") == (20, 10, "a")


def test_what_is_kept_for_replay_gives_way_oldest_first() -> None:
    log = Log((0, 10, 5), (10, 20, 1), (20, 30, 1), (30, 40, 1))
    assert excess(log, Lsn(40), 150) == 20  # type: ignore[arg-type]
    assert excess(log, Lsn(10), 150) == 10  # type: ignore[arg-type]


def slot(restart: int, **more: object) -> SlotFacts:
    return SlotFacts("shop_1", Lsn(0), Lsn(restart), **more)  # type: ignore[arg-type]


def test_the_guard_warns_once_and_stops_when_the_slot_stands_still(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    guard = RetentionGuard(1000, lambda: now)
    guard.look(slot(0), Lsn(700), Lsn(1))
    assert not caplog.records
    guard.look(slot(0), Lsn(900), Lsn(1))
    guard.look(slot(0), Lsn(950), Lsn(1))
    assert len(caplog.records) == 1
    now = 10.0
    guard.look(slot(0), Lsn(1500), Lsn(2))  # past the limit, but it moves
    now = 80.0
    with pytest.raises(Refused, match="max_retained") as caught:
        guard.look(slot(0), Lsn(1500), Lsn(2))
    assert "runnel remove" in caught.value.hint


def test_an_invalidated_slot_is_refused_at_once() -> None:
    with pytest.raises(Refused, match="invalidated"):
        RetentionGuard(None).look(slot(0, wal_status="lost"), Lsn(10), Lsn(0))


def test_a_replay_holds_the_log_but_not_the_slot_and_is_named() -> None:
    log = Log((0, 10, 5), (10, 20, 5), (20, 30, 5))
    positions = {"copy": Lsn(30), "again": Lsn(30)}
    found = holdings(Carried(log), Lsn(30), positions, ack="sink", holds={"again": Lsn(10)})  # type: ignore[arg-type]
    assert (found.acknowledge, found.trim, found.holder) == (30, 10, "again")
