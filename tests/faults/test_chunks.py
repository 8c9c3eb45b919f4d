"""A damaged change log: nothing of it is delivered, the file is named, and the way out loses nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from history import Oracle, assert_equal, assert_tables
from product import Runnel, eventually
from servers import Database
from traffic import SCHEMA, TABLES, Traffic


def flip_a_byte(chunk: Path) -> None:
    data = bytearray(chunk.read_bytes())
    data[len(data) // 3] ^= 0x40
    chunk.write_bytes(data)


def cut_off_the_end(chunk: Path) -> None:
    chunk.write_bytes(chunk.read_bytes()[:-100])


@pytest.mark.parametrize("damage", [flip_a_byte, pytest.param(cut_off_the_end, marks=pytest.mark.long)])
def test_a_damaged_chunk_ends_the_run_by_name_and_the_way_out_delivers_everything(
    make_runnel: Callable[..., Runnel], pg: Database, damage: Callable[[Path], None]
) -> None:
    pg.execute(SCHEMA)
    runnel = make_runnel(pg.url, log={"chunk_bytes": "64KiB"})
    runnel.run("init")
    oracle = Oracle(pg.url)
    log = runnel.home / ".runnel" / "log"

    def chunks() -> list[Path]:
        return sorted(log.glob("*.chunk"))

    capture = runnel.start("capture")
    with Traffic(pg.url, seed=19, count=150) as traffic:
        traffic.finish()
    eventually("a log", lambda: len(chunks()) > 5, tell=runnel.errors)
    runnel.stop(capture)

    some = chunks()[2]
    damage(some)
    refused = runnel.run("run", "--once", code=1)
    assert "Traceback" not in refused.stderr
    what, remedy = refused.stderr.splitlines()[-2:]
    assert some.name in what, refused.stderr
    assert "move it and every later chunk out of the log" in remedy, refused.stderr
    assert_is_prefix(oracle, runnel)

    (runnel.home / "moved").mkdir()
    for chunk in chunks()[2:]:
        chunk.rename(runnel.home / "moved" / chunk.name)
    runnel.run("run", "--once")
    assert_equal(oracle.entries(), runnel.lines())
    assert_tables(pg.url, runnel.lines(), *TABLES)


def assert_is_prefix(oracle: Oracle, runnel: Runnel) -> None:
    lines = runnel.lines()
    assert_equal(oracle.entries()[: len(lines)], lines)
