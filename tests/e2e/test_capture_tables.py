"""Tables that join, leave or change in the publication while capture runs, by Runnel's hand or another's."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from captured import TABLE, Captured
from runnel.capture import service, session, settling
from runnel.capture.subscription import Wanted, init
from runnel.errors import Refused
from runnel.progress.state import State
from servers import Database, MakeServer, await_condition
from servers.postgres import UNCURED

Make = Callable[..., Captured]


@pytest.fixture
def make(pg: Database, tmp_path: Path) -> Make:
    pg.execute(TABLE)
    return lambda **source: Captured(pg.url, tmp_path, {}, source)


def noted(c: Captured) -> int:
    with State.connect(c.url, "shop") as state:
        return len(state.known().members)


@pytest.mark.parametrize(
    ("alteration", "says"),
    [
        ("SET TABLE t WHERE (id > 5)", "leaves out rows of public.t"),
        ("SET TABLE t (id)", "leaves out columns of public.t"),
        ("ADD TABLES IN SCHEMA secret", "publishes all tables of schema secret"),
    ],
)
def test_capture_refuses_a_publication_that_leaves_out_a_part_of_a_table_or_lets_others_in(
    make: Make, monkeypatch: pytest.MonkeyPatch, alteration: str, says: str
) -> None:
    monkeypatch.setattr(session, "_SOURCE", 0.2)
    c = make()
    c.execute("CREATE SCHEMA secret")
    with c.running():
        c.execute(f"ALTER PUBLICATION shop {alteration}")
        await_condition(lambda: c.failure, what="a refusal")
    assert isinstance(c.failure, Refused)
    assert says in str(c.failure)
    assert "runnel init sets it right" in c.failure.hint
    with pytest.raises(Refused, match=says):  # nor after a restart
        service.run(c.config, threading.Event())


@pytest.mark.parametrize("running", [True, False])
def test_a_table_that_was_out_and_came_back_between_two_looks_is_named(
    make: Make, caplog: pytest.LogCaptureFixture, running: bool
) -> None:
    c = make(reconcile=0.2)
    out_and_in = "ALTER PUBLICATION shop DROP TABLE t; ALTER PUBLICATION shop ADD TABLE t"
    with caplog.at_level(logging.WARNING):
        if not running:
            c.execute(out_and_in)
        with c.running():
            if running:
                c.execute(out_and_in)
            await_condition(lambda: "public.t was taken out of publication shop" in caplog.text)


@pytest.mark.long
@pytest.mark.parametrize("by", ["hand", "init", "capture"])
def test_on_a_server_that_caches_membership_a_table_is_captured_whoever_added_it(
    make_server: MakeServer, tmp_path: Path, by: str
) -> None:
    server = make_server(UNCURED)
    with server.connect() as connection:
        connection.execute(TABLE.encode())
    # by others: between two of capture's own looks
    c = Captured(server.url(), tmp_path, {}, {"reconcile": 0.2 if by == "capture" else 3})
    with c.running(), psycopg.connect(c.url, autocommit=True) as busy:
        await_condition(lambda: noted(c) == 1)
        with psycopg.connect(c.url) as creating:  # capture's own look finds it only with its writer
            creating.execute("CREATE TABLE late (id int PRIMARY KEY)")
        busy.execute("BEGIN")
        busy.execute("INSERT INTO late VALUES (1)")
        if by == "hand":
            c.execute("ALTER PUBLICATION shop ADD TABLE late")
        elif by == "init":
            waiting = threading.Thread(target=_init, args=[c.url, "*.*"])
            waiting.start()
        await_condition(
            lambda: c.one("SELECT count(*) FROM pg_publication_tables WHERE tablename = 'late'")
        )
        busy.execute("COMMIT")
        if by == "init":
            waiting.join(30)
        await_condition(lambda: noted(c) == 2, what="the table counts")
        c.execute("INSERT INTO late VALUES (3)")
        await_condition(lambda: 3 in c.ids(), what="the change of a table that joined")


def test_a_capture_with_the_old_configuration_leaves_alone_what_init_made_for_the_new_one(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    c = make(tables=["public.t"], reconcile=0.1)
    c.execute("CREATE TABLE late (id int PRIMARY KEY)")
    with caplog.at_level(logging.WARNING), c.running():
        _init(c.url, "public.t", "public.late")
        c.execute("INSERT INTO late VALUES (3)")  # committed after `init` returned
        await_condition(lambda: "source.tables was changed" in caplog.text, what="a warning")
        c.execute("INSERT INTO late VALUES (4)")
        c.await_ids(3, 4)
        assert noted(c) == 2
    assert caplog.text.count("source.tables was changed") == 1
    assert "restart capture with the new configuration" in caplog.text


def test_capture_takes_out_and_forgets_what_its_own_configuration_does_not_want(make: Make) -> None:
    c = make(tables=["public.t"], reconcile=0.1)
    c.execute("CREATE TABLE late (id int PRIMARY KEY)")
    with c.running():
        await_condition(lambda: noted(c) == 1)
        c.execute("ALTER PUBLICATION shop ADD TABLE late")
        await_condition(
            lambda: not c.one("SELECT count(*) FROM pg_publication_tables WHERE tablename = 'late'")
        )
        await_condition(lambda: noted(c) == 1)


def test_capture_settles_every_table_but_one_that_is_locked_and_that_one_later(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(settling, "poisons", lambda _: True)
    c = make(reconcile=0.2)
    c.execute("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE z (id int PRIMARY KEY)")
    with psycopg.connect(c.url, autocommit=True) as vacuum, caplog.at_level(logging.WARNING):
        c.execute("ALTER PUBLICATION shop ADD TABLE a, z", "UPDATE runnel.subscription SET members = '{}'")
        vacuum.execute("BEGIN")
        vacuum.execute("LOCK TABLE a IN SHARE UPDATE EXCLUSIVE MODE")
        with c.running():
            await_condition(lambda: noted(c) == 2, what="the others count")
            await_condition(lambda: "public.a could not be taken out" in caplog.text)
            vacuum.execute("COMMIT")
            await_condition(lambda: noted(c) == 3, what="it counts too")


@pytest.mark.long
def test_on_a_server_that_caches_membership_a_table_that_joined_while_capture_was_down_is_captured(
    make_server: MakeServer, tmp_path: Path
) -> None:
    server = make_server(UNCURED)
    with server.connect() as connection:
        connection.execute(TABLE.encode())
    c = Captured(server.url(), tmp_path, {}, {"reconcile": 0.2})
    with psycopg.connect(c.url, autocommit=True) as busy:
        c.execute("CREATE TABLE late (id int PRIMARY KEY)")
        busy.execute("BEGIN")
        busy.execute("INSERT INTO late VALUES (1)")
        waiting = threading.Thread(target=_init, args=[c.url, "*.*"])
        waiting.start()
        await_condition(
            lambda: c.one("SELECT count(*) FROM pg_publication_tables WHERE tablename = 'late'")
        )
        busy.execute("COMMIT")
        waiting.join(30)
    c.execute("INSERT INTO late VALUES (3)")  # committed after `init` returned
    with c.running():
        c.await_ids(3)


@pytest.mark.long
def test_on_a_server_that_caches_membership_a_table_that_left_is_not_captured_any_more(
    make_server: MakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_SOURCE", 0.2)
    server = make_server(UNCURED)
    with server.connect() as connection:
        connection.execute(TABLE.encode())
        connection.execute(b"CREATE TABLE secret (id int PRIMARY KEY)")
    c = Captured(server.url(), tmp_path, {}, {"tables": ["*.*", "!*.secret"], "reconcile": 0.2})
    c.execute("ALTER PUBLICATION shop ADD TABLE secret")
    sender = "SELECT pid FROM pg_stat_replication WHERE application_name = 'runnel shop capture'"
    with psycopg.connect(c.url, autocommit=True) as busy, ExitStack() as stack:
        busy.execute("BEGIN")
        busy.execute("INSERT INTO secret VALUES (1)")
        stack.enter_context(c.running())
        first = await_condition(lambda: c.one(sender))
        await_condition(
            lambda: not c.one("SELECT count(*) FROM pg_publication_tables WHERE tablename = 'secret'")
        )
        busy.execute("COMMIT")
        await_condition(lambda: c.one(sender) not in (None, first), what="another walsender")
        c.execute("INSERT INTO secret VALUES (2)", "INSERT INTO t VALUES (3, 'c')")
        await_condition(lambda: 3 in c.ids())
        assert 2 not in c.ids()


def _init(url: str, *tables: str) -> None:
    with State.connect(url, "shop") as state:
        init(url, state, Wanted("shop", tables, ("p",)), lambda _: None)
