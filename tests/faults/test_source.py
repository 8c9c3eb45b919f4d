"""The source fails, restarts, or is not the one it was: heal what can heal, refuse what cannot."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from history import Oracle, assert_equal, assert_tables, lsn_number
from product import Runnel, eventually
from servers import Database, MakeServer
from traffic import SCHEMA, TABLES, Traffic

Prepared = Callable[..., Runnel]

AT_REST = 16.0
"""Seconds without a write: longer than whatever Runnel or the server itself does by the clock."""


@pytest.fixture
def prepared(make_runnel: Callable[..., Runnel], pg: Database) -> Prepared:
    """The tables of the random traffic, and a subscription to them."""

    def make(**sections: Any) -> Runnel:
        pg.execute(SCHEMA)
        runnel = make_runnel(pg.url, **sections)
        runnel.run("init")
        return runnel

    return make


def slot_of(url: str) -> str:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(
            "select slot_name from pg_replication_slots where plugin = 'pgoutput' and database = current_database()"
        ).fetchone()
    assert row is not None
    return str(row[0])


def test_cut_connections_are_made_again(prepared: Prepared, pg: Database) -> None:
    runnel = prepared()
    oracle = Oracle(pg.url)
    process = runnel.start("run")
    with Traffic(pg.url, seed=5, pause=0.01):
        for _ in range(3):
            before = runnel.position()
            with psycopg.connect(pg.url, autocommit=True) as connection:
                connection.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity"
                    " where application_name like 'runnel%' and pid <> pg_backend_pid()"
                )
            eventually("delivery goes on", lambda b=before: runnel.position() > b, tell=runnel.errors)  # type: ignore[misc]
    runnel.await_delivery()
    runnel.stop(process)
    assert_equal(oracle.entries(), runnel.lines())
    assert_tables(pg.url, runnel.lines(), *TABLES)


@pytest.mark.timeout(600)
def test_a_server_that_crashes_under_load_and_comes_back_loses_and_repeats_nothing(
    make_runnel: Callable[..., Runnel], make_server: MakeServer
) -> None:
    server = make_server()
    with server.connect() as connection:
        connection.execute(SCHEMA)
    runnel = make_runnel(server.url())
    runnel.run("init")
    oracle = Oracle(server.url())
    process = runnel.start("run")
    first = eventually("the sink is open", runnel.position, tell=runnel.errors)
    with Traffic(server.url(), seed=23, pause=0.01):
        eventually("delivery", lambda: runnel.position() > first, tell=runnel.errors)
        for fall in (server.crash, lambda: server.stop("immediate"), server.stop):
            fall()
            before = runnel.position()
            server.start()
            eventually("delivery goes on", lambda b=before: runnel.position() > b, tell=runnel.errors)  # type: ignore[misc]
    runnel.await_delivery()
    assert process.poll() is None, runnel.errors()
    runnel.stop(process)
    assert_equal(oracle.entries(), runnel.lines())
    assert_tables(server.url(), runnel.lines(), *TABLES)


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        ("select pg_drop_replication_slot({slot})", "slot"),
        (
            "select pg_drop_replication_slot({slot});"
            "select pg_create_logical_replication_slot({slot}, 'pgoutput')",
            "gone",
        ),
        ("select pg_replication_slot_advance({slot}, pg_current_wal_insert_lsn())", "gone"),
    ],
    ids=["dropped", "recreated", "advanced by somebody else"],
)
def test_a_slot_that_lost_changes_is_refused(
    prepared: Prepared, pg: Database, break_it: str, says: str
) -> None:
    runnel = prepared()
    slot = slot_of(pg.url)
    with psycopg.connect(pg.url, autocommit=True) as connection:
        connection.execute("insert into accounts (id) values (1)")
        for statement in break_it.split(";"):
            connection.execute(statement.format(slot=f"'{slot}'"))
        connection.execute("insert into accounts (id) values (2)")
    done = runnel.run("run", "--once", code=1)
    assert slot in done.stderr, done.stderr
    assert says in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert runnel.lines() == [] if runnel.out.exists() else True


def test_tables_that_change_in_the_middle_of_a_batch_keep_their_history(
    prepared: Prepared, pg: Database
) -> None:
    runnel = prepared()
    with psycopg.connect(pg.url) as connection:
        connection.execute("create table shape (id int primary key, a text, b int)")
        connection.commit()
        runnel.run("init")  # the new table joins
        connection.execute("insert into shape values (1, 'one', 1)")
        connection.execute("alter table shape add c numeric default 7")
        connection.execute("insert into shape values (2, 'two', 2, 2.50)")
        connection.commit()
        connection.execute("alter table shape drop b")
        connection.execute("insert into shape values (3, 'three', 3.0)")
        connection.execute("alter table shape rename a to name")
        connection.execute("insert into shape values (4, 'four', 4)")
        connection.commit()
        connection.execute("alter table shape alter c type text using 'was ' || c")
        connection.execute("update shape set name = 'vier' where id = 4")
        connection.commit()
        connection.execute("drop table shape")
        connection.commit()
    runnel.run("run", "--once")
    rows = [line["after"] for line in runnel.lines()]
    assert rows == [
        {"id": "1", "a": "one", "b": "1"},
        {"id": "2", "a": "two", "b": "2", "c": "2.50"},
        {"id": "3", "a": "three", "c": "3.0"},
        {"id": "4", "name": "four", "c": "4"},
        {"id": "4", "name": "vier", "c": "was 4"},
    ]


def lsn(connection: psycopg.Connection[Any], query: str) -> int:
    row = connection.execute(f"select {query}".encode()).fetchone()
    assert row is not None
    return lsn_number(str(row[0]))


def test_an_idle_or_unpublished_database_still_moves_its_slot_and_then_rests(
    make_runnel: Callable[..., Runnel], make_server: MakeServer
) -> None:
    # the server itself writes at most once after each thing that others wrote
    server = make_server(checkpoint_timeout="1d", autovacuum="off")
    with server.connect() as connection:
        connection.execute(SCHEMA)
        runnel = make_runnel(server.url(), source={"tables": ["public.accounts"]})
        runnel.run("init")
        process = runnel.start("run")
        eventually("Runnel runs", lambda: runnel.status()["pipelines"]["copy"]["state"] == "live")
        connection.execute(
            "insert into events (body) select repeat('x', 100) from generate_series(1, 1000)"
        )
        written = lsn(connection, "pg_current_wal_insert_lsn()")
        slot = f"confirmed_flush_lsn from pg_replication_slots where slot_name = '{slot_of(server.url())}'"
        eventually("the slot passes what is not published", lambda: lsn(connection, slot) >= written, 60)

        since, end = time.monotonic(), 0
        writes: list[str] = []

        def rests() -> bool:
            nonlocal since, end
            now = lsn(connection, "pg_current_wal_insert_lsn()")
            if now != end:
                since, end = time.monotonic(), now
                writes.append(f"{since:.1f} s: {now:X}")
            return time.monotonic() - since > AT_REST

        eventually(f"nothing is written for {AT_REST} s", rests, 90, tell=lambda: "\n".join(writes))
        assert runnel.status()["pipelines"]["copy"]["state"] == "live"
        runnel.stop(process)
