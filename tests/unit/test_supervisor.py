"""How long `run --once` bears with what its children say."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

import pytest

from runnel.config.models import Config
from runnel.supervisor import supervisor
from runnel.supervisor.child import Event
from runnel.supervisor.display import Shown
from runnel.supervisor.patience import ONCE_PATIENCE, WELL_AFTER, Patience


class Run:
    """Capture and two pipelines, looked at every half second."""

    def __init__(self) -> None:
        self.shown = {name: Shown("live", lsn="0/10") for name in ("capture", "a", "b")}
        self.patience = Patience()
        self.now = 1000.0

    def ends_after(self, states: Mapping[str, float], who: str, *, limit: float = 600.0) -> float | None:
        """Each of the states for its seconds, round after round. When patience was spent; None: never."""
        begun = self.now
        while self.now - begun < limit:
            for state, seconds in states.items():
                self.shown[who].state = state
                until = self.now + seconds
                while self.now < until:
                    error = self.patience.look(self.shown, self.now)
                    if error is not None:
                        assert error.hint
                        return self.now - begun
                    self.step()
                    self.now += 0.5
        return None

    def step(self) -> None:
        return


def test_trouble_in_which_nothing_moves_ends_the_run_after_a_minute() -> None:
    run = Run()
    run.shown["capture"].error = "the log is full, held by 'c'"
    run.shown["capture"].state = "paused"
    ended = run.ends_after({"paused": 1}, "capture")
    assert ended is not None
    assert ONCE_PATIENCE <= ended < ONCE_PATIENCE + 5
    error = run.patience.look(run.shown, run.now)
    assert error is not None
    assert error.message == "capture: the log is full, held by 'c'"


def test_what_fails_again_each_time_it_has_started_ends_the_run_too() -> None:
    for states in (
        {"reconnecting": 3, "starting": 1, "streaming": 0.5},
        {"retrying": 2, "starting": 20},  # Spark takes long to start
    ):
        for who in ("capture", "a"):
            assert Run().ends_after(states, who) is not None


def test_what_capture_receives_again_after_each_start_is_no_way_on() -> None:
    class Receiving(Run):
        def step(self) -> None:
            self.shown["capture"].lsn = f"0/{int(self.now):X}"

    assert Receiving().ends_after({"reconnecting": 3, "streaming": 1}, "capture") is not None


def test_a_log_that_grows_does_not_excuse_a_pipeline() -> None:
    class Growing(Run):
        def step(self) -> None:
            self.shown["capture"].log_lsn = f"0/{int(self.now):X}"

    assert Growing().ends_after({"retrying": 3, "live": 1}, "a") is not None
    assert Growing().ends_after({"reconnecting": 3, "streaming": 1}, "capture") is None


def test_a_run_goes_on_while_a_pipeline_gets_further() -> None:
    class Delivering(Run):
        def step(self) -> None:
            self.shown["b"].lsn = f"0/{int(self.now):X}"

    assert Delivering().ends_after({"paused": 5}, "capture") is None
    assert Delivering().ends_after({"retrying": 5, "live": 1}, "a") is None


def test_trouble_is_over_when_all_was_well_for_a_while() -> None:
    assert Run().ends_after({"reconnecting": 30, "streaming": WELL_AFTER + 2}, "capture") is None
    assert Run().ends_after({"reconnecting": 30, "streaming": WELL_AFTER - 2}, "capture") is not None


def test_what_the_children_say_is_handed_on_to_whoever_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    monkeypatch.setenv("RUNNEL_EVENTS_FD", str(write))
    config = Config.model_validate({"source": {"url": "postgresql://me@db/shop"}})
    one = supervisor.Supervisor(config, ["a"], plain=True)
    value = {"event": "state", "who": "a", "state": "live"}
    one._take(Event("pipelines", value))
    os.close(write)
    with os.fdopen(read) as said:
        assert [json.loads(line) for line in said] == [value]
