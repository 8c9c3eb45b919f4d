"""The README's own configuration and commands, typed as they stand there against a real source."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import psycopg
import pyarrow.parquet as pq
import pytest

from history import Oracle, assert_equal, parse_jsonl
from pages import blocks, calls
from product import Runnel
from servers import Database
from traffic import SCHEMA, Traffic

ELSEWHERE = ("/var/lib/runnel/", "/data/shop/")


@pytest.mark.timeout(400)
def test_the_configuration_of_the_readme_runs_with_the_commands_below_it(
    make_runnel: Callable[..., Runnel], pg: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    pg.execute(SCHEMA, "create table audit_logins (id int primary key)")
    ((_, text),) = blocks("yaml", "README.md")
    typed = [line for _, block in blocks("sh", "README.md") for line in calls(block)]
    runnel = make_runnel(pg.url)
    for place in ELSEWHERE:
        assert place in text
        text = text.replace(place, f"{runnel.home}/there/")
    (runnel.home / "runnel.yaml").write_text(text)
    monkeypatch.setenv("SOURCE_URL", pg.url)

    def type_in(line: str) -> str:
        words = shlex.split(line)[1:]
        if words[0] == "run" and "--source" not in words:
            words.append("--once")
        elif words[0] == "run":
            words[words.index("--source") + 1] = pg.url
            words.append("--once")
        return runnel.run(*words).stdout

    assert [shlex.split(line)[1] for line in typed] == ["check", "init", "run", "status", "run"]
    check, init, run, status, without_file = typed
    assert "4 can be published" in type_in(check)
    assert "pipeline events begins at" in type_in(init)
    oracle = Oracle(pg.url)
    with Traffic(pg.url, seed=43, count=60) as traffic:
        traffic.finish()
    pg.execute("insert into audit_logins values (1)")
    type_in(run)
    shown = type_in(status)
    assert "events" in shown
    assert "lake" in shown
    expected = [entry for entry in oracle.entries() if entry[2] != "public.audit_logins"]
    there = runnel.home / "there"
    assert_equal(expected, parse_jsonl(runnel.run("cat", str(there / "events")).stdout.split("\n")[:-1]))
    assert list((there / "events").glob("*.jsonl.zst"))
    rows = sum(pq.ParquetFile(path).metadata.num_rows for path in data_files(there / "lake"))
    assert rows == len(expected)

    assert type_in(without_file) == ""  # its slot begins now
    with psycopg.connect(pg.url) as connection:
        slots = connection.execute(
            "select slot_name from pg_replication_slots"
            " where database = current_database() and plugin = 'pgoutput'"
        ).fetchall()
    assert sorted(name.rpartition("_")[0] for (name,) in slots) == ["runnel", "shop"]


def data_files(path: Path) -> list[Path]:
    found = (one.relative_to(path) for one in path.rglob("*.parquet"))
    return [path / one for one in found if not any(part[0] in "_." for part in one.parts)]
