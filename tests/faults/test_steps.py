"""kill -9 at every named step, and of everything at once: the output still equals the source's history."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from history import Oracle, assert_equal, assert_tables
from product import Runnel, eventually
from servers import Database
from traffic import SCHEMA, TABLES, Traffic

CAPTURE_STEPS = (
    "capture.chunk.written",
    "log.chunk.written",
    "log.chunk.visible",
    "capture.chunk.visible",
    "capture.acknowledged",
)
SINK_STEPS = ("sink.staged", "sink.written", "sink.committed", "pipeline.delivered")


@pytest.fixture
def runnel(make_runnel: Callable[..., Runnel], pg: Database) -> Runnel:
    pg.execute(SCHEMA)
    return make_runnel(pg.url)


def deliver_all(runnel: Runnel, oracle: Oracle) -> None:
    runnel.await_delivery()
    process = runnel.processes[-1]
    runnel.stop(process)
    assert_equal(oracle.entries(), runnel.lines())
    assert_tables(runnel.url, runnel.lines(), *TABLES)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("steps", [CAPTURE_STEPS, SINK_STEPS], ids=["capture", "sink"])
def test_a_kill_at_each_named_step_loses_nothing_and_repeats_nothing(
    runnel: Runnel, tmp_path: Path, steps: tuple[str, ...]
) -> None:
    marks = tmp_path / "fired"
    marks.mkdir()
    runnel.run("init")
    oracle = Oracle(runnel.url)
    env = {
        "RUNNEL_FAILPOINTS": ";".join(f"{step}=kill@2" for step in steps),
        "RUNNEL_FAILPOINTS_ONCE": str(marks),
    }
    runnel.start("run", env=env)
    with Traffic(runnel.url, seed=7, pause=0.01):
        eventually(
            "every step fired",
            lambda: len(os.listdir(marks)) == len(steps),
            timeout=500,
            tell=lambda: f"{os.listdir(marks)}\n{runnel.errors()}",
        )
    deliver_all(runnel, oracle)


def test_a_kill_of_the_whole_tree_is_healed_by_the_next_run(runnel: Runnel) -> None:
    runnel.run("init")
    oracle = Oracle(runnel.url)
    with Traffic(runnel.url, seed=13, pause=0.01):
        process = runnel.start("run")
        eventually("a first delivery", runnel.position)
        runnel.kill_all(process)
        runnel.start("run")
        runnel.await_delivery()
    deliver_all(runnel, oracle)
