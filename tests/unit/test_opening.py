"""Where a pipeline begins: by its target's record, or by its own row when it was just registered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runnel.errors import Refused
from runnel.log.api import Lineage
from runnel.postgres.lsn import Lsn
from runnel.progress.position import Position
from runnel.sinks.files.growing import GrowingFiles
from runnel.sinks.files.settings import FilesSettings
from runnel.sinks.opening import open_sink
from runnel.sinks.registry import SINKS, SinkContext
from runnel.sinks.stdout.settings import StdoutSettings
from runnel.sinks.stdout.sink import Stdout

LINEAGE = Lineage("7", 1, "s")


class FakeState:
    def __init__(self, *, fresh: bool) -> None:
        self.fresh = fresh
        self.kept: Lsn | None = None

    def is_fresh(self, pipeline: str) -> bool:
        return self.fresh

    def begun(self, pipeline: str) -> None:
        self.fresh = False

    def hold(self, pipeline: str, lsn: Lsn | None) -> None:
        self.kept = lsn

    def held(self, pipeline: str) -> Lsn | None:
        return self.kept


def opened(directory: Path, epoch: int, lsn: int, *, fresh: bool) -> tuple[Lsn, Any]:
    sink = GrowingFiles(FilesSettings(type="files", path=str(directory)), "p")
    state: Any = FakeState(fresh=fresh)
    position = open_sink(sink, "p", Position(LINEAGE, epoch, Lsn(lsn)), state)
    assert sink.flush() == position.lsn
    return position.lsn, state


def test_a_new_target_begins_where_the_pipeline_was_registered(tmp_path: Path) -> None:
    lsn, state = opened(tmp_path, 1, 100, fresh=True)
    assert lsn == 100
    assert not state.fresh


def test_the_targets_record_counts_for_a_pipeline_that_has_begun(tmp_path: Path) -> None:
    opened(tmp_path, 1, 100, fresh=True)
    lsn, state = opened(tmp_path, 2, 900, fresh=False)
    assert lsn == 100
    assert state.kept == 100, "the log must keep what is delivered again"
    assert opened(tmp_path, 3, 100, fresh=False)[1].kept is None


def test_a_target_that_lost_its_record_is_refused_unless_somebody_says_where_to_begin(
    tmp_path: Path,
) -> None:
    position = Position(LINEAGE, 2, Lsn(900))
    settings = FilesSettings(type="files", path=str(tmp_path / "gone"))
    state: Any = FakeState(fresh=False)
    sink = SINKS["files"].sink(settings, SinkContext("p", "", begun=True))
    with pytest.raises(Refused, match="has delivered up to 0/384") as raised:
        open_sink(sink, "p", position, state)
    assert "runnel replay p --from 0/384" in raised.value.hint
    assert not (tmp_path / "gone" / "_runnel" / "position.json").exists()
    replayed = SINKS["files"].sink(settings, SinkContext("p", ""))
    assert open_sink(replayed, "p", position, state).lsn == 900


def test_a_pipeline_registered_anew_does_not_go_back_to_where_an_earlier_one_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opened(tmp_path, 1, 100, fresh=True)
    lsn, state = opened(tmp_path, 2, 900, fresh=True)
    assert lsn == 900
    assert not state.fresh
    assert "0/384" in caplog.text
    assert opened(tmp_path, 3, 900, fresh=False)[0] == 900


def test_a_record_later_than_the_registration_counts_so_that_nothing_comes_twice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opened(tmp_path, 1, 900, fresh=True)
    assert opened(tmp_path, 2, 500, fresh=True)[0] == 900
    assert not caplog.records


def test_a_target_without_a_record_begins_where_the_log_is_held_for_a_replay(tmp_path: Path) -> None:
    state: Any = FakeState(fresh=False)
    recorded = Position(LINEAGE, 1, Lsn(900))
    for held, begins in ((None, 900), (Lsn(100), 100), (Lsn(950), 900)):
        state.kept = held
        sink = Stdout(StdoutSettings(), str(tmp_path))
        assert open_sink(sink, "p", recorded, state).lsn == begins
        assert sink.flush() == begins
        assert state.kept == (100 if begins == 100 else None)
