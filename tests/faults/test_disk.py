"""A full disk, of the log, of the output or of Spark's checkpoints: Runnel waits, says so, and goes on by itself."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from history import Oracle, assert_equal
from product import Runnel, eventually
from servers import Database
from traffic import SCHEMA, Traffic

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="a disk is filled by mounting a small one, which only root may"
)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "small"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", path], check=True)
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def fill(path: Path) -> Path:
    """Take what is left of the disk."""
    ballast = path / ".ballast"
    with open(ballast, "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 65536)
        except OSError:
            pass
    return ballast


SAYS = {"log": "/small/log/", "output": "/small/out", "checkpoint": "/_spark/"}


@pytest.mark.parametrize("what", SAYS)
def test_a_full_disk_heals_when_there_is_room_again(
    make_runnel: Callable[..., Runnel], pg: Database, small_disk: Path, what: str
) -> None:
    pg.execute(SCHEMA)
    runnel = make_runnel(pg.url)
    if what == "log":
        runnel.config["log"] = str(small_disk / "log")
    elif what == "checkpoint":
        (runnel.home / ".runnel" / "log").mkdir(parents=True)
        (runnel.home / ".runnel" / "log" / "_spark").symlink_to(small_disk)
    else:
        runnel.config["pipelines"]["copy"]["sink"]["path"] = str(small_disk / "out")
        runnel.out = small_disk / "out"
    runnel.write()
    runnel.run("init")
    oracle = Oracle(pg.url)
    process = runnel.start("run")
    with Traffic(pg.url, seed=3, pause=0.01):
        begin = eventually("the sink is open", runnel.position)
        eventually("a first delivery", lambda: runnel.position() > begin, tell=runnel.errors)
        ballast = fill(small_disk)
        eventually("the message names the place", lambda: SAYS[what] in trouble(runnel), tell=runnel.errors)
        before = runnel.position()
        ballast.unlink()
        eventually(
            "delivery after room was made", lambda: runnel.position() > before, 240, tell=runnel.errors
        )
    runnel.await_delivery()
    runnel.stop(process)
    assert_equal(oracle.entries(), runnel.lines())


def trouble(runnel: Runnel) -> str:
    """The lines that tell of a full disk."""
    return "\n".join(line for line in runnel.errors().splitlines() if "no space left" in line.lower())
