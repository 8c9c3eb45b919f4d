"""A real server's changes in every format of the files sink, and on standard output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from conftest import RunnelCli
from contract.sinks import Name, read
from servers import Database

CONFIG = """
source: {{url: "{url}", name: shop}}
pipelines:
  lines: {{sink: {{type: files, path: lines}}}}
  packed: {{sink: {{type: files, path: packed, compression: gzip, layout: table}}}}
  commas: {{sink: {{type: files, path: commas, format: csv}}}}
  typed: {{on_error: dead_letter, sink: {{type: files, path: typed, format: parquet}}}}
spark: {{master: "local[2]"}}
"""

TABLES = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, total numeric(10,2), day date, note text, raw bytea,"
    " at timestamptz)",
    'CREATE TABLE "odd ""table"" / näme" (id int PRIMARY KEY, v text)',
)


def by_folder(root: Path) -> dict[str, list[Name]]:
    found: dict[str, list[Name]] = {}
    for path in sorted(root.rglob("*.*"), key=lambda p: p.name):
        if path.is_file() and "_runnel" not in path.parts:
            found.setdefault(path.parent.name, []).extend(read(path))
    return found


def lines(root: Path) -> list[dict[str, Any]]:
    paths = sorted(root.glob("*.jsonl"))
    return [json.loads(line, parse_float=Decimal) for p in paths for line in p.read_text().splitlines()]


def write(pg: Database, first: int) -> None:
    pg.execute(
        f"""INSERT INTO orders SELECT n, n + 0.25, '2026-01-01', 'q" \\ ' || n, '\\x00ff', now()
            FROM generate_series({first}, {first + 99}) n""",
        f"UPDATE orders SET note = NULL WHERE id < {first + 10}",
        f"UPDATE orders SET id = -id WHERE id = {first + 50}",
        f"DELETE FROM orders WHERE id = {first + 51}",
        f"""INSERT INTO "odd ""table"" / näme" VALUES ({first}, 'x')""",
        'TRUNCATE "odd ""table"" / näme"',
    )


def test_each_format_has_the_same_changes_over_two_runs(pg: Database, runnel_cli: RunnelCli) -> None:
    pg.execute(*TABLES)
    runnel_cli.config(CONFIG.format(url=pg.url))
    runnel_cli.run("init")
    for first in (1, 1001):
        write(pg, first)
        runnel_cli.run("run", "--once", timeout=180)
    here = runnel_cli.directory
    changes = lines(here / "lines")
    expected = [(c["lsn"], c["seq"]) for c in changes]
    assert len(set(expected)) == len(expected) == 2 * 100 + 10 + 109 + 2 * 4
    assert (
        sorted(n for some in by_folder(here / "packed").values() for n in some)
        == by_folder(here / "lines")["lines"]
    )
    assert by_folder(here / "commas")["commas"] == by_folder(here / "lines")["lines"]
    typed = by_folder(here / "typed")
    assert sorted(n for some in typed.values() for n in some) == by_folder(here / "lines")["lines"]
    assert sorted(typed) == ["public.odd%20%22table%22%20%2F%20näme", "public.orders"]


def test_a_value_parquet_cannot_hold_is_a_letter_and_its_key_is_parked(
    pg: Database, runnel_cli: RunnelCli
) -> None:
    pg.execute(*TABLES)
    runnel_cli.config(CONFIG.format(url=pg.url))
    runnel_cli.run("init")
    pg.execute(
        "INSERT INTO orders (id, day) VALUES (1, '0044-03-15 BC'), (2, '2026-01-01')",
        "UPDATE orders SET day = '2026-01-02' WHERE id = 1",
    )
    runnel_cli.run("run", "--once", "typed", timeout=180)
    [file] = (runnel_cli.directory / "typed").glob("*/*.parquet")
    assert pq.read_table(file, partitioning=None)["id"].to_pylist() == [2]
    listed = runnel_cli.run("dead-letters", "list").stdout
    assert "0044-03-15 BC" in listed or "'day'" in listed


def test_a_reader_of_standard_output_may_go_away(pg: Database, runnel_cli: RunnelCli) -> None:
    pg.execute(*TABLES)
    process = runnel_cli.start("run", "--source", pg.url, "--sink", "stdout")
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        write_until_seen(pg, process)
        process.stdout.close()
        pg.execute("INSERT INTO orders (id) VALUES (5000)")
        process.wait(60)
        told = process.stderr.read()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.stderr.close()
    assert "reader of standard output is gone" in told
    assert "Traceback" not in told


def write_until_seen(pg: Database, process: subprocess.Popen[str]) -> None:
    """Something must be committed after the subscription was made: write until a line comes."""
    import select

    assert process.stdout is not None
    for first in range(1, 100_000, 1000):
        write(pg, first)
        if select.select([process.stdout], [], [], 2)[0]:
            assert json.loads(process.stdout.readline())["lsn"]
            return
    pytest.fail("no line came")
