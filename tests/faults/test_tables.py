"""Tables come, go and are taken out by somebody else while Runnel runs, in the middle of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg

from history import Oracle, assert_equal
from product import Runnel, eventually
from servers import Database

Connection = psycopg.Connection[tuple[Any, ...]]


def published(connection: Connection) -> set[str]:
    rows = connection.execute("select tablename from pg_publication_tables where pubname = 'shop'")
    return {name for (name,) in rows}


def change_tables(connection: Connection, runnel: Runnel) -> int:
    """Everything that may happen to the set of tables; gives the transaction that nobody could capture."""

    def joins(name: str) -> None:
        eventually(f"{name} is published", lambda: name in published(connection), tell=runnel.errors)

    connection.execute("insert into kept values (1, 'one'); insert into dropped values (1)")
    connection.execute("create table late (id int primary key, note text)")
    joins("late")
    connection.execute("insert into late values (1, 'late'); update dropped set id = 2")
    connection.execute("drop table dropped")
    connection.execute("create table dropped (name text primary key, extra int)")  # another, same name
    joins("dropped")
    connection.execute("insert into dropped values ('again', 1); update kept set note = 'two'")

    with connection.transaction():
        connection.execute("alter publication shop drop table kept")
        connection.execute("insert into kept values (2, 'nobody sees this')")
        row = connection.execute("select pg_current_xact_id()::text::bigint").fetchone()
        assert row is not None
    joins("kept")
    connection.execute("insert into kept values (3, 'three')")

    connection.execute("alter publication shop add table secret")
    eventually("secret is out again", lambda: "secret" not in published(connection), tell=runnel.errors)
    connection.execute("insert into secret values (1); delete from kept where id = 1")
    return int(row[0])


def test_tables_that_come_go_and_are_taken_out_by_somebody_else_keep_their_history(
    make_runnel: Callable[..., Runnel], pg: Database
) -> None:
    pg.execute(
        "create table kept (id int primary key, note text)",
        "create table dropped (id int primary key)",
        "create table secret (id int primary key)",
    )
    runnel = make_runnel(pg.url, source={"tables": ["public.*", "!public.secret"], "reconcile": "500ms"})
    runnel.run("init")
    oracle = Oracle(pg.url)
    runnel.run("pause", "copy")  # so that all of it is one batch
    process = runnel.start("run")
    with pg.connect() as connection:
        lost = change_tables(connection, runnel)
    runnel.run("resume", "copy")
    runnel.await_delivery()
    runnel.stop(process)
    expected = [e for e in oracle.entries() if e[0] != lost and e[2] != "public.secret"]
    assert_equal(expected, runnel.lines())
    said = runnel.errors()
    assert "public.kept was taken out of publication shop by somebody else" in said
    assert "public.secret left" in said
