"""kill -9 at every named step and of every process: the output still equals the source's history."""

from __future__ import annotations

import os
from pathlib import Path

import psycopg
import pytest

from history import Oracle, assert_equal, assert_tables
from product import Runnel, eventually
from traffic import SCHEMA, TABLES, Traffic

CAPTURE_STEPS = ("log.chunk.written", "log.chunk.visible", "capture.acknowledged")
SINK_STEPS = ("sink.staged", "sink.written", "sink.committed", "pipeline.delivered")


@pytest.fixture
def runnel(tmp_path: Path, database: str) -> Runnel:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(SCHEMA)
    return Runnel(tmp_path, database)


def deliver_all(runnel: Runnel, oracle: Oracle) -> None:
    runnel.await_delivery()
    process = runnel.processes[-1]
    runnel.stop(process)
    assert_equal(oracle.entries(), runnel.lines())
    assert_tables(runnel.url, runnel.lines(), *TABLES)


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
            f"every step fired, only {os.listdir(marks)}\n{runnel.errors()}",
            lambda: len(os.listdir(marks)) == len(steps),
            timeout=240,
        )
    deliver_all(runnel, oracle)


@pytest.mark.parametrize("victim", ["capture", "pipeline", "streaming_source", "pyspark.daemon"])
def test_a_killed_process_is_brought_back_by_itself(runnel: Runnel, victim: str) -> None:
    runnel.run("init")
    oracle = Oracle(runnel.url)
    process = runnel.start("run")
    with Traffic(runnel.url, seed=11, pause=0.01):
        before = eventually("a first delivery", runnel.position)
        found = eventually(f"a process {victim}", lambda: runnel.find(process, victim))
        found.kill()
        eventually(f"delivery after the kill\n{runnel.errors()}", lambda: runnel.position() > before)
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


def test_children_die_with_their_supervisor(runnel: Runnel) -> None:
    process = runnel.start("run")
    eventually("a first delivery", lambda: runnel.find(process, "java") and runnel.position() >= 0)
    family = runnel.tree(process)
    process.kill()
    process.communicate()
    eventually("no process left", lambda: not any(one.is_running() for one in family[1:]), timeout=20)
