"""The change log from a plain PySpark script, found by the format's name after a mere install."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from logs import LogMaker, order_ids
from product import SOURCE

SCRIPT = """
import json, sys, time
from pyspark.sql import SparkSession

log, checkpoint, until = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
changes = spark.read.format("runnel").option("log", log).load()
table = spark.read.format("runnel").option("log", log).option("table", "public.orders").load()
given = (
    spark.read.format("runnel").option("log", log).option("table", "public.orders")
    .option("until", until).option("max_bytes", "64MiB").schema("note string, id string, later int, _lsn long")
    .load()
)
streamed = []

def take(frame, _):
    streamed.extend(row["id"] for row in frame.orderBy("_lsn", "_seq").collect())

def stream(start):
    reader = spark.readStream.format("runnel").option("log", log).option("table", "public.orders")
    query = (
        reader.option("start", start).load().writeStream.foreachBatch(take)
        .option("checkpointLocation", checkpoint).start()
    )
    query.processAllAvailable()
    query.stop()

stream("earliest")
first = len(streamed)
stream("earliest")  # from its checkpoint: nothing is new
print(json.dumps({
    "columns": changes.columns,
    "changes": [row.asDict() for row in changes.orderBy("lsn", "seq").drop("time").collect()],
    "table": [row["id"] for row in table.orderBy("_lsn", "_seq").collect()],
    "table_columns": table.columns,
    "streamed": streamed, "first": first,
    "given": [list(row) for row in given.orderBy("_lsn").collect()],
}))
spark.stop()
"""


def test_a_plain_script_reads_changes_and_a_table_at_once_and_as_a_stream(tmp_path: Path) -> None:
    maker = LogMaker(tmp_path / "log")
    maker.append(3)
    maker.advance()
    maker.append(2, rows=2)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "log"), str(tmp_path / "checkpoint"), "0/1300"],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "PYSPARK_PYTHON": sys.executable},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    ids = [*order_ids(0, 3), *order_ids(3, 5, rows=2)]
    assert seen["columns"] == [
        "op",
        "schema",
        "table",
        "lsn",
        "seq",
        "xid",
        "time",
        "key",
        "before",
        "after",
        "unchanged",
    ]
    assert [json.loads(change["key"])["id"] for change in seen["changes"]] == ids
    assert seen["changes"][0] == {
        "op": "insert",
        "schema": "public",
        "table": "orders",
        "lsn": "0/1100",
        "seq": 0,
        "xid": 0,
        "key": '{"id":"0-0"}',
        "before": None,
        "after": '{"id":"0-0","note":"x"}',
        "unchanged": None,
    }
    assert {"id", "note", "_op", "_lsn", "_seq", "_commit_time"} <= set(seen["table_columns"])
    assert seen["table"] == ids
    assert seen["streamed"] == ids
    assert seen["first"] == len(ids)
    assert seen["given"] == [["x", "0-0", None, 0x1100], ["x", "1-0", None, 0x1200]]
