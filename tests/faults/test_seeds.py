"""Random traffic, random settings, and kill -9 of random processes at random moments: one seed each."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable

import psutil
import pytest

from history import Oracle, assert_equal, assert_tables
from product import Runnel, eventually
from servers import Database
from traffic import SCHEMA, TABLES, Traffic

SEEDS = int(os.environ.get("RUNNEL_TEST_SEEDS", "10"))
KILLS = 6


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_is_killed_whenever_the_output_equals_the_sources_history(
    make_runnel: Callable[..., Runnel], pg: Database, seed: int
) -> None:
    choice = random.Random(seed)
    pg.execute(SCHEMA, f"alter database \"{pg.name}\" set logical_decoding_work_mem = '64kB'")
    runnel = make_runnel(
        pg.url,
        source={"streaming": choice.random() < 0.7, "ack": choice.choice(("sink", "sink", "log"))},
        log={"chunk_bytes": choice.choice(("4KiB", "64KiB", "8MiB")), "retain": choice.choice((0, "1h"))},
    )
    runnel.config["pipelines"]["copy"] |= {"tasks": choice.choice((1, 2))}
    runnel.write()
    runnel.run("init")
    oracle = Oracle(pg.url)
    process = runnel.start("run")
    begin = eventually("the sink is open", runnel.position, tell=runnel.errors)
    with Traffic(pg.url, seed, pause=0.005):
        eventually("a first delivery", lambda: runnel.position() > begin, tell=runnel.errors)
        for _ in range(KILLS):
            threading.Event().wait(choice.uniform(0, 6))  # any moment is a good one
            victim = choice.choice(runnel.tree(process))
            try:
                victim.kill()
            except psutil.NoSuchProcess:
                continue
            if victim.pid == process.pid:
                process.wait()
                process = runnel.start("run")
    runnel.await_delivery(300)
    runnel.stop(process)
    assert_equal(oracle.entries(), runnel.lines())
    assert_tables(pg.url, runnel.lines(), *TABLES)
