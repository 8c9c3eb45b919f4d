"""kill -9 of each process of `runnel run`: it comes back by itself, nothing is lost, nothing twice."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from conftest import RunnelCli
from servers import Database, await_condition
from shop import Shop, processes


@pytest.fixture
def shop(pg: Database, tmp_path: Path) -> Shop:
    return Shop(pg, tmp_path)


@pytest.mark.timeout(600)
def test_any_process_that_is_killed_comes_back_and_nothing_is_lost_or_doubled(
    shop: Shop, runnel_cli: RunnelCli
) -> None:
    runnel_cli.config(shop.config())
    runnel_cli.run("init")
    running = runnel_cli.start("run", stderr=None)
    for role in ("planner", "worker", "capture", "jvm", "driver"):
        shop.work()
        shop.await_delivered()
        killed = await_condition(lambda role=role: processes(running.pid, role), 60)  # type: ignore[misc]
        shop.work()
        for process in killed:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue  # a worker goes when its daemon does
        shop.work()
    shop.await_delivered()
    running.terminate()
    assert running.wait(60) == 0
    runnel_cli.run("run", "--once")
    shop.verify()


def test_a_killed_supervisor_takes_its_children_along(shop: Shop, runnel_cli: RunnelCli) -> None:
    runnel_cli.config(shop.config())
    running = runnel_cli.start("run", stderr=None)
    await_condition(lambda: processes(running.pid, "planner"), 120)
    shop.work()
    below = psutil.Process(running.pid).children(recursive=True)
    running.kill()
    running.wait()
    _, alive = psutil.wait_procs(below, timeout=30)
    assert not alive
    runnel_cli.run("run", "--once")
    shop.verify()


def test_a_driver_that_dies_between_the_sinks_commit_and_the_stored_position_repeats_nothing(
    shop: Shop, runnel_cli: RunnelCli, tmp_path: Path
) -> None:
    runnel_cli.config(shop.config())
    runnel_cli.run("init")
    shop.work()
    once = tmp_path / "once"
    once.mkdir()
    runnel_cli.run(
        "run",
        "--once",
        env={"RUNNEL_FAILPOINTS": "pipeline.delivered=kill", "RUNNEL_FAILPOINTS_ONCE": str(once)},
        timeout=180,
    )
    assert list(once.iterdir())
    shop.verify()
