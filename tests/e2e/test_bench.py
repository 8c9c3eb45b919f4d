"""The benchmark's own code, on backlogs so small that its figures mean nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runnel.bench import live
from runnel.bench.drain import Bench
from runnel.bench.report import JSONL, SERVER, drain_table
from runnel.bench.stages import stages
from runnel.bench.workload import Workload
from runnel.demo.server import embedded_binaries
from servers import MakeServer


@pytest.fixture
def bench(make_server: MakeServer, tmp_path: Path) -> Bench:
    server = make_server(18, **{**SERVER, "shared_buffers": "128MB"})
    said: list[str] = []
    return Bench(
        server.create_database("bench"), embedded_binaries() / "bin", tmp_path / "runs", said.append
    )


def left(bench: Bench) -> list[str]:
    """What of the drains is still at the source."""
    with bench.connect() as connection:
        rows = connection.execute("select slot_name::text from pg_replication_slots").fetchall()
    return [name for (name,) in rows]


@pytest.mark.long
@pytest.mark.parametrize("mixed", [False, True], ids=["inserts", "mixed"])
def test_a_drain_of_a_small_backlog_gives_rates_and_costs_of_both_sides(bench: Bench, mixed: bool) -> None:
    work = Workload("tiny", "tiny", 10 if mixed else 1, 1000, 5000, 100, mixed=mixed)
    (result,) = results = bench.compare(work, {"jsonl": JSONL}, repeat=1)
    assert result.changes == 4000
    assert len(result.native) == len(result.runnel) == 1
    assert min(*result.native, *result.runnel) > 0
    assert {"capture", "driver", "jvm", "walsender"} <= set(result.runnel_cpu[0])
    assert json.loads(json.dumps(result.to_json()))["workload"] == "tiny"
    assert drain_table(results).row_count == 1
    assert left(bench) == []


@pytest.mark.long
def test_latency_is_of_every_row_and_stages_have_their_costs(bench: Bench) -> None:
    measured = live.latency(bench, seconds=7, rate=20)
    assert measured["seen"] == measured["of"] == 140
    assert 0 < measured["p50_ms"] <= measured["p99_ms"] <= measured["max_ms"]
    costs = stages(bench, changes=20_000)
    assert costs["read and check"] > 0
    assert {"decode", "JSON lines", "typed columns"} <= set(costs)
    assert left(bench) == []
