"""The same pipeline on a standalone cluster: a master and two workers, each a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest

from history import Oracle, assert_equal
from product import Runnel, eventually
from runnel.demo.scratch import die_with_parent
from servers import Database
from traffic import SCHEMA, Traffic

SPARK_HOME = Path(pyspark.__file__).parent


def _free_ports(count: int) -> list[int]:
    import socket

    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """The master's URL, two workers alive."""
    port, web, *others = _free_ports(4)
    url = f"spark://127.0.0.1:{port}"
    env = {
        **os.environ,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    roles = [
        ["master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(web)],
        *(
            ["worker.Worker", "--host", "127.0.0.1", "--webui-port", str(other), "-c", "1", "-m", "1g", url]
            for other in others
        ),
    ]
    started = [
        subprocess.Popen(
            [SPARK_HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{role}", *arguments],
            env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=die_with_parent(),  # noqa: PLW1509
        )
        for role, *arguments in roles
    ]  # fmt: skip

    def two_alive() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{web}/json/", timeout=5) as answer:
                return int(json.load(answer)["aliveworkers"]) == 2
        except OSError:
            return False

    eventually("two workers", two_alive)
    yield url
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_cluster_delivers_what_one_machine_does(
    make_runnel: Callable[..., Runnel], pg: Database, cluster: str
) -> None:
    pg.execute(SCHEMA)
    runnel = make_runnel(
        pg.url, spark={"master": cluster, "spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m"}
    )
    runnel.config["pipelines"]["copy"]["tasks"] = 2
    runnel.write()
    runnel.run("init")
    oracle = Oracle(pg.url)
    with Traffic(pg.url, seed=17, count=300) as traffic:
        traffic.finish()
    runnel.run("run", "--once", timeout=300)
    assert_equal(oracle.entries(), runnel.lines())
