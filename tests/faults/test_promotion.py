"""The source becomes another server: a standby that was promoted, a cluster that was upgraded. What is not
known to have kept every change is refused with its remedy; what is goes on, and nothing is lost or doubled."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from history import Oracle, assert_equal, assert_tables
from product import Runnel
from runnel.demo.server import Server
from servers import MakeServer, await_condition
from traffic import SCHEMA, TABLES, Traffic

QUIET = {"autovacuum": "off"}
"""A slot on a standby is lost when the primary removes catalogue rows that it still needs."""


@pytest.fixture
def standby_of(scratch: Path) -> Iterator[Callable[[Server], Server]]:
    """A standby that may hold logical slots, and takes over the primary's failover slots."""
    made: list[Server] = []

    def make(primary: Server) -> Server:
        query(primary, "select pg_create_physical_replication_slot('standby', true)")
        link = f"host={primary.host} port={primary.port} user={primary.user} password={primary.password}"
        settings = {
            "primary_conninfo": f"{link} dbname=postgres",
            "primary_slot_name": "standby",
            "hot_standby_feedback": "on",
            "sync_replication_slots": "on",
        }
        made.append(primary.standby(scratch / f"pg-{uuid4().hex[:8]}", settings))
        return made[-1].start()

    yield make
    for server in made:
        server.destroy()


def query(server: Server, text: str, database: str = "postgres", *values: object) -> Any:
    with server.connect(database) as connection:
        row = connection.execute(text.encode(), values).fetchone()
    return None if row is None else row[0]


def runnel_slot(server: Server) -> str:
    return str(query(server, "select slot_name from pg_replication_slots where plugin = 'pgoutput'"))


def point_at(runnel: Runnel, server: Server) -> None:
    runnel.url = server.url("shop")
    runnel.config["source"]["url"] = runnel.url
    runnel.write()


def first_half(runnel: Runnel, primary: Server) -> list[tuple[int, str, str]]:
    """Deliver some traffic; gives its history."""
    oracle = Oracle(primary.url("shop"))
    with Traffic(runnel.url, seed=11, count=40) as traffic:
        traffic.finish()
    runnel.run("run", "--once")
    history = oracle.entries()
    oracle.drop()
    assert_equal(history, runnel.lines())
    assert history
    return history


def second_half(runnel: Runnel, server: Server, before: list[tuple[int, str, str]]) -> None:
    """Traffic on the other server: the output is the history of both."""
    oracle = Oracle(server.url("shop"), "oracle_after")
    with Traffic(runnel.url, seed=12, count=40) as traffic:
        traffic.finish()
    runnel.run("run", "--once")
    assert_equal(before + oracle.entries(), runnel.lines())
    assert_tables(runnel.url, runnel.lines(), *TABLES)
    runnel.run("run", "--once")  # and the next start finds nothing to object to
    assert_equal(before + oracle.entries(), runnel.lines())


def chunks(runnel: Runnel) -> list[str]:
    return sorted(path.name for path in (runnel.home / ".runnel" / "log").glob("*.chunk"))


def prepare(primary: Server, make_runnel: Callable[..., Runnel], **source: Any) -> Runnel:
    url = primary.create_database("shop")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(SCHEMA.encode())
    runnel = make_runnel(url, source=source)
    runnel.run("init")
    return runnel


def keep_slot_on(standby: Server, primary: Server, slot: str) -> None:
    """As tools do that keep slots on standbys. It waits until the primary tells of its transactions."""
    make = f"select pg_create_logical_replication_slot('{slot}', 'pgoutput')"
    making = threading.Thread(target=query, args=(standby, make, "shop"))
    making.start()
    while making.is_alive():
        query(primary, "select pg_log_standby_snapshot()")
        making.join(0.1)
    assert runnel_slot(standby) == slot


def switch(primary: Server, standby: Server) -> None:
    """The primary hands over everything it wrote, then the standby is promoted."""
    primary.stop("fast")
    standby.promote()


def test_a_promoted_standby_is_refused_until_it_is_accepted(
    make_server: MakeServer, standby_of: Callable[[Server], Server], make_runnel: Callable[..., Runnel]
) -> None:
    """A slot that some tool kept on the standby: the server cannot say that it followed."""
    primary = make_server(18, **QUIET)
    runnel = prepare(primary, make_runnel)
    standby = standby_of(primary)
    slot = runnel_slot(primary)
    keep_slot_on(standby, primary, slot)
    before = first_half(runnel, primary)
    switch(primary, standby)
    point_at(runnel, standby)
    written = chunks(runnel)

    refused = runnel.run("run", "--once", code=1).stderr
    assert "timeline 1 to 2" in refused, refused
    assert slot in refused
    assert "runnel init --accept-server" in refused
    assert "Traceback" not in refused
    assert_equal(before, runnel.lines())
    assert chunks(runnel) == written

    runnel.run("init")  # is not consent
    assert "--accept-server" in runnel.run("run", "--once", code=1).stderr
    assert "accepted timeline 2" in runnel.run("init", "--accept-server").stdout
    second_half(runnel, standby, before)


@pytest.mark.long
def test_a_synchronized_failover_slot_goes_on_by_itself(
    make_server: MakeServer, standby_of: Callable[[Server], Server], make_runnel: Callable[..., Runnel]
) -> None:
    primary = make_server(18, **QUIET)
    runnel = prepare(primary, make_runnel, failover=True)
    standby = standby_of(primary)
    oracle = Oracle(primary.url("shop"))
    process = runnel.start("run")

    def synchronized() -> bool:
        query(primary, "select pg_log_standby_snapshot()")
        slots = "select bool_or(synced and not temporary) from pg_replication_slots"
        return bool(query(standby, slots))

    with Traffic(runnel.url, seed=11, pause=0.01):  # a slot is taken over while it moves
        await_condition(synchronized, 90, every=0.2)
    runnel.await_delivery()
    runnel.stop(process)
    before = oracle.entries()
    oracle.drop()
    assert_equal(before, runnel.lines())
    switch(primary, standby)
    point_at(runnel, standby)
    second_half(runnel, standby, before)


@pytest.mark.long
def test_a_promotion_that_lost_delivered_changes_is_refused_even_if_accepted(
    make_server: MakeServer, standby_of: Callable[[Server], Server], make_runnel: Callable[..., Runnel]
) -> None:
    primary, states = make_server(18, **QUIET), make_server(18)
    runnel = make_runnel(primary.create_database("shop"), state={"url": states.url()})
    with psycopg.connect(runnel.url, autocommit=True) as connection:
        connection.execute(SCHEMA.encode())
    runnel.run("init")
    standby = standby_of(primary)
    slot = runnel_slot(primary)
    keep_slot_on(standby, primary, slot)
    standby.stop("fast")  # from here on it misses everything
    first_half(runnel, primary)
    primary.stop("fast")
    standby.settings = {k: v for k, v in standby.settings.items() if k != "primary_conninfo"}
    standby.start()
    standby.promote()
    point_at(runnel, standby)
    for words in (["run", "--once"], ["init", "--accept-server"], ["run", "--once"]):
        said = runnel.run(*words, code=1).stderr
        assert "no longer exist at the source" in said, said


@pytest.mark.long
def test_an_upgraded_server_is_refused_until_it_is_accepted(
    make_server: MakeServer, make_runnel: Callable[..., Runnel], scratch: Path
) -> None:
    old = make_server(18)
    runnel = prepare(old, make_runnel)
    before = first_half(runnel, old)
    new = Server(old.installation, scratch / f"pg-{uuid4().hex[:8]}", old.settings)
    try:
        new.password = old.password
        new.initialize()
        # Runnel's own last words are behind its slot: pg_upgrade wants the slot past everything
        query(old, f"select pg_replication_slot_advance('{runnel_slot(old)}', pg_current_wal_insert_lsn())")
        old.stop("fast")
        upgrade(old, new)
        new.start()
        point_at(runnel, new)
        refused = runnel.run("run", "--once", code=1).stderr
        assert "another server" in refused, refused
        assert "runnel init --accept-server" in refused
        assert "accepted server" in runnel.run("init", "--accept-server").stdout
        second_half(runnel, new, before)
    finally:
        new.destroy()


def upgrade(old: Server, new: Server) -> None:
    """pg_upgrade, which takes logical slots along from 17 on."""
    programs = old.installation / "bin"
    arguments = [f"-b{programs}", f"-B{programs}", f"-d{old.data}", f"-D{new.data}", f"-U{old.user}"]
    for server in (old, new):
        rules = server.data / "pg_hba.conf"
        rules.write_text("local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n")
        with (server.data / "postgresql.conf").open("a") as settings:
            settings.write("wal_level = logical\nmax_replication_slots = 10\n")
    done = subprocess.run(
        [str(programs / "pg_upgrade"), *arguments, f"-s{new.directory}"],
        capture_output=True, text=True, check=False, **{**new._as_user(), "cwd": str(new.directory)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
