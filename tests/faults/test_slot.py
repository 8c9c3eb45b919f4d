"""What the slot holds back on the source when a pipeline stands still: kept alive, warned of, given up."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable

import pytest

from history import Oracle, assert_equal
from product import Runnel, eventually
from servers import Database, MakeServer
from traffic import SCHEMA

SENDER = "select pid from pg_stat_replication where application_name = 'runnel shop capture'"


def sender(database: Database) -> int | None:
    with database.connect() as connection:
        row = connection.execute(SENDER).fetchone()
    return None if row is None else int(row[0])


def test_a_sink_that_takes_nothing_leaves_the_server_answered_and_the_rest_waiting(
    make_runnel: Callable[..., Runnel], pg: Database
) -> None:
    pg.execute(SCHEMA, f"alter database \"{pg.name}\" set wal_sender_timeout = '1s'")
    runnel = make_runnel(
        pg.url, sink={"type": "stdout"}, log={"chunk_bytes": "64KiB", "max_bytes": "256KiB"}
    )
    runnel.run("init")
    oracle = Oracle(pg.url)
    process = runnel.start("run", stdout=subprocess.PIPE)  # which nobody reads
    first = eventually("capture streams", lambda: sender(pg), tell=runnel.errors)
    pg.execute(*["insert into events (body) select repeat('b', 300) from generate_series(1, 300)"] * 50)
    eventually("capture waits", lambda: "held by pipeline 'copy'" in runnel.errors(), tell=runnel.errors)
    begun = time.monotonic()
    eventually("the server's patience is spent four times", lambda: time.monotonic() - begun > 4)
    assert sender(pg) == first, "the server cut the connection: it was not answered"
    assert process.stdout is not None
    lines = []
    for text in process.stdout:
        lines.append(json.loads(text))
        if len(lines) == 15_000:
            break
    assert sender(pg) == first
    runnel.stop(process)
    lines += [json.loads(text) for text in process.stdout]
    process.stdout.close()
    assert_equal(oracle.entries(), lines)


@pytest.mark.long
def test_a_slot_that_stands_still_past_max_retained_ends_the_run_until_the_pipeline_goes_on(
    make_runnel: Callable[..., Runnel], pg: Database
) -> None:
    pg.execute(SCHEMA)
    runnel = make_runnel(pg.url, source={"max_retained": "1MB"})
    runnel.run("init")
    runnel.run("pause", "copy")
    oracle = Oracle(pg.url)
    process = runnel.start("run")
    pg.execute("insert into events (body) select repeat('b', 300) from generate_series(1, 5000)")
    eventually("a warning", lambda: "source.max_retained stops capture at" in runnel.errors())
    assert process.wait(150) == 1, runnel.errors()
    what, remedy = runnel.errors().splitlines()[-2:]
    assert what.startswith("runnel: slot 'shop_")
    assert "source.max_retained allows 1,000,000" in what
    assert "runnel remove" in remedy
    runnel.run("resume", "copy")
    runnel.run("run", "--once")
    assert_equal(oracle.entries(), runnel.lines())


def test_a_slot_that_the_server_gives_up_ends_the_run_and_the_way_out_works(
    make_runnel: Callable[..., Runnel], make_server: MakeServer
) -> None:
    server = make_server(18, max_slot_wal_keep_size="1MB", min_wal_size="32MB", max_wal_size="32MB")
    with server.connect() as connection:
        connection.execute(SCHEMA)
        runnel = make_runnel(server.url())
        runnel.run("init")
        runnel.run("pause", "copy")
        process = runnel.start("run")
        connection.execute("insert into accounts (id) values (1)")  # the slot must wait for it
        eventually("capture streams", lambda: connection.execute(SENDER).fetchone(), tell=runnel.errors)
        slots = connection.execute("select slot_name from pg_replication_slots").fetchall()
        for _ in range(4):
            connection.execute("select pg_logical_emit_message(false, 'other', ''), pg_switch_wal()")
        connection.execute("checkpoint")
        assert process.wait(60) == 1, runnel.errors()
        what, remedy = runnel.errors().splitlines()[-2:]
        assert f"slot {slots[0][0]!r} was invalidated" in what
        assert "runnel destroy && runnel init" in remedy
        assert "max_slot_wal_keep_size" in remedy
        assert "invalidated" in runnel.run("run", "--once", code=1).stderr
        runnel.run("destroy")
        runnel.out.rename(runnel.home / "old")
        runnel.run("init")
        oracle = Oracle(server.url())
        connection.execute("insert into accounts (id) values (2)")
    runnel.run("run", "--once")
    assert_equal(oracle.entries(), runnel.lines())
