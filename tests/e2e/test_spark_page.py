"""The programs of docs/spark.md, run as they stand there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from logs import LogMaker, order_ids
from pages import blocks
from product import SOURCE

FOR_EVER = "query.awaitTermination()"
REST = """
import json

def rows(frame, name):
    stream = frame.writeStream.format("memory").queryName(name).start()
    stream.processAllAvailable()
    stream.stop()
    return [row["id"] for row in spark.table(name).orderBy("_lsn", "_seq").collect()]

def at_once(**options):
    reader = spark.read.format("runnel").option("log", "./.runnel/log").option("table", "public.orders")
    frame = reader.options(**options).load().orderBy("_lsn", "_seq")
    return [(row["id"], row["_lsn"]) for row in frame.collect()]

everything = at_once()
middle = f"{everything[3][1] >> 32:X}/{everything[3][1] & 0xFFFFFFFF:X}"
print(json.dumps({
    "stream": rows(orders, "orders"),
    "until": rows(orders_with(until=middle, max_bytes="1"), "some"),
    "at once": [id for id, _ in everything],
    "at once from": [id for id, _ in at_once(start=middle)],
    "at once until": [id for id, _ in at_once(until=middle)],
}))
spark.stop()
"""


def test_the_programs_of_the_spark_page_read_the_log_as_the_page_says(tmp_path: Path) -> None:
    """Nothing is changed in them but that they end; the second's stream is also read with options."""
    maker = LogMaker(tmp_path / ".runnel" / "log")
    maker.append(3)
    maker.append(2)
    maker.append(2)
    first, second = (text for _, text in blocks("python", "docs/spark.md"))
    assert FOR_EVER in first
    assert FOR_EVER in second
    stream = second[second.index("orders = (") : second.index("\n)\n") + 3]
    first, second = (
        text.replace(FOR_EVER, "query.processAllAvailable(); query.stop()") for text in (first, second)
    )
    again = stream.replace("orders = (", "return (").replace(
        "    .load()", "    .options(**options).load()"
    )
    again = "def orders_with(**options):\n" + "".join(f"    {line}\n" for line in again.splitlines())
    done = subprocess.run(
        [sys.executable, "-c", "\n".join((first, second, again, REST))],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "PYSPARK_PYTHON": sys.executable},
        cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    *console, last = done.stdout.splitlines()
    ids = list(order_ids(0, 7))
    assert [one for one in ids if any(f'{{"id":"{one}"' in line for line in console)] == ids
    seen = json.loads(last)
    assert (
        seen
        == {
            "stream": ids,
            "until": ids[:3],  # and what "at once from" there gives follows without a gap
            "at once": ids,
            "at once from": ids[3:],
            "at once until": ids[:3],
        }
    )
