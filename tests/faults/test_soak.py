"""Some minutes of steady traffic: no process grows without bound, nor does what Runnel keeps on disk."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from history import Oracle, assert_equal, assert_tables
from product import Runnel, eventually
from servers import Database
from shop import ROLES, processes
from traffic import SCHEMA, TABLES, Traffic

SECONDS = float(os.environ.get("RUNNEL_TEST_SOAK", "240"))
EVERY = 2.0
ROOM = 32 << 20
"""What a process may grow by in the last third of the time, beside a tenth of what it has."""


def sizes(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue  # trimmed while we look
    return total


def sample(pid: int, log: Path) -> dict[str, int]:
    """Bytes of memory per role (all its processes together) and of disk."""
    found = {"disk of the log": sizes(log)}
    for role in ROLES:
        total = 0
        for process in processes(pid, role):
            try:
                total += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        found[f"memory of {role}"] = total
    found["memory of supervisor"] = psutil.Process(pid).memory_info().rss
    return found


@pytest.mark.long
@pytest.mark.timeout(SECONDS * 2 + 300)
def test_steady_traffic_leaves_memory_and_log_as_they_are(
    make_runnel: Callable[..., Runnel], pg: Database
) -> None:
    pg.execute(SCHEMA)
    runnel = make_runnel(pg.url, log={"chunk_bytes": "1MiB"})
    runnel.run("init")
    oracle = Oracle(pg.url)
    process = runnel.start("run")
    samples: dict[str, list[int]] = defaultdict(list)
    begin = eventually("the sink is open", runnel.position, tell=runnel.errors)
    with Traffic(pg.url, seed=31, pause=0.02):
        eventually("a first delivery", lambda: runnel.position() > begin, tell=runnel.errors)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            for what, value in sample(process.pid, runnel.home / ".runnel" / "log").items():
                samples[what].append(value)
            time.sleep(EVERY)
        assert process.poll() is None, runnel.errors()
    runnel.await_delivery()
    runnel.stop(process)
    for what, values in samples.items():
        third = len(values) // 3
        before, last = max(values[third : 2 * third]), max(values[2 * third :])
        print(f"{what}: {before >> 20} MiB, then {last >> 20} MiB")
        assert last < before * 1.1 + ROOM, f"{what} grew: {[value >> 20 for value in values]} MiB"
    assert max(samples["disk of the log"]) < 256 << 20
    assert_equal(oracle.entries(), runnel.lines())
    assert_tables(pg.url, runnel.lines(), *TABLES)
