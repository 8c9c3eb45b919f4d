"""The same pipeline on a standalone cluster: a master and two workers, each a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from history import Oracle, assert_equal, lsn_number, parse_jsonl
from product import SOURCE, Runnel, eventually
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


PLAIN_SCRIPT = """
import json, sys
from pyspark.sql import SparkSession

master, log, scratch = sys.argv[1:]
spark = (
    SparkSession.builder.master(master).config("spark.driver.host", "127.0.0.1")
    .config("spark.executor.memory", "512m").config("spark.ui.enabled", "false").getOrCreate()
)
changes = spark.read.format("runnel").option("log", log).load()
table = spark.read.format("runnel").option("log", log).option("table", "public.events").load()

def streamed(**options):
    rows = []
    reader = spark.readStream.format("runnel").option("log", log).option("start", "earliest")
    query = (
        reader.options(**options).load().writeStream
        .foreachBatch(lambda frame, _: rows.extend(frame.collect()))
        .option("checkpointLocation", f"{scratch}/{len(options)}").start()
    )
    query.processAllAvailable()
    query.stop()
    return rows

def as_changes(rows):
    rows = [row.asDict() for row in rows]
    return [{k: v for k, v in row.items() if k != "time"} for row in rows if row["op"] != "message"]

def as_events(rows):
    return [[row[name] for name in ("_lsn", "_seq", "_op", "id", "account", "body")] for row in rows]

print(json.dumps({
    "changes": as_changes(changes.collect()), "streamed changes": as_changes(streamed()),
    "table": as_events(table.collect()), "streamed table": as_events(streamed(table="public.events")),
    "executors": len(spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()) - 1,
}))
spark.stop()
"""


def place(change: dict[str, Any]) -> tuple[int, int]:
    return lsn_number(change["lsn"]), int(change["seq"])


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_cluster_delivers_what_one_machine_does_and_shows_it_to_a_plain_script(
    make_runnel: Callable[..., Runnel], pg: Database, cluster: str, tmp_path: Path
) -> None:
    pg.execute(SCHEMA)
    runnel = make_runnel(
        pg.url,
        spark={"master": cluster, "spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m"},
        log={"retain": "1h"},
    )
    runnel.config["pipelines"]["copy"]["tasks"] = 2
    runnel.write()
    runnel.run("init")
    oracle = Oracle(pg.url)
    with Traffic(pg.url, seed=17, count=300) as traffic:
        traffic.finish()
    runnel.run("run", "--once", timeout=300)
    assert_equal(oracle.entries(), runnel.lines())

    done = subprocess.run(
        [sys.executable, "-c", PLAIN_SCRIPT, cluster, str(runnel.home / ".runnel" / "log"), str(tmp_path / "s")],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "PYSPARK_PYTHON": sys.executable},
        cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["executors"] == 2
    delivered = runnel.lines()
    for view in ("changes", "streamed changes"):
        in_order = sorted(seen[view], key=place)
        assert_equal(oracle.entries(), in_order)
        for one, line in zip(in_order, delivered, strict=True):
            for part in ("key", "before", "after"):
                assert parsed(one[part]) == line.get(part)
    events = [change for change in delivered if change["table"] == "events"]
    expected = [(*place(change), change["op"], *event(change)) for change in events]
    for view in ("table", "streamed table"):
        assert sorted(map(tuple, seen[view])) == expected


def parsed(text: str | None) -> Any:
    return None if text is None else parse_jsonl([text])[0]


def event(change: dict[str, Any]) -> tuple[int | None, int | None, str | None]:
    row = change.get("after", {})
    number = {name: int(row[name]) if row.get(name) is not None else None for name in ("id", "account")}
    return number["id"], number["account"], row.get("body")
