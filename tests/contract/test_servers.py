"""The servers that other tests stand on do what they say."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import psycopg
import pytest

from runnel.demo.scratch import Scratch
from runnel.demo.server import Server
from servers import Database, MakeServer, Proxy, await_condition

HERE = Path(__file__).parents[1]


def slot_works(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        connection.execute("CREATE PUBLICATION p FOR TABLE t")
        connection.execute(
            "SELECT pg_create_logical_replication_slot('s' || oid, 'pgoutput') FROM pg_database "
            "WHERE datname = current_database()"
        )
        connection.execute("INSERT INTO t VALUES (1)")
        got = connection.execute(
            "SELECT count(*) FROM pg_replication_slots s, pg_logical_slot_get_binary_changes(s.slot_name, "
            "NULL, NULL, 'proto_version', '1', 'publication_names', 'p') "
            "WHERE s.database = current_database()"
        ).fetchone()
    assert got == (4,)


def test_the_shared_server_can_decode_and_runs_unprivileged(pg: Database) -> None:
    slot_works(pg.url)
    assert psutil.Process(pg.server.pid).uids().real != 0


def test_a_database_is_dropped_with_its_slot_while_somebody_is_connected(pg_server: Server) -> None:
    url = pg_server.create_database("occupied")
    slot_works(url)
    with psycopg.connect(url) as guest:
        pg_server.drop_database("occupied")
        with pytest.raises(psycopg.OperationalError):
            guest.execute("SELECT 1")


def test_data_survives_a_restart_and_committed_data_a_crash(make_server: MakeServer) -> None:
    server = make_server(18, fsync="on")
    with server.connect() as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS n")
    port = server.port
    server.restart()
    with server.connect() as connection:
        connection.execute("INSERT INTO t VALUES (2)")
    family = psutil.Process(server.pid).children(recursive=True)
    server.crash()
    assert not server.running
    assert not any(process.is_running() for process in family)
    server.start()
    assert server.port == port
    with server.connect() as connection:
        assert connection.execute("SELECT sum(n) FROM t").fetchone() == (3,)


def test_a_standby_follows_and_can_be_promoted(
    make_server: MakeServer, make_standby: Callable[[Server], Server]
) -> None:
    primary = make_server(18)
    with primary.connect() as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS n")
    standby = make_standby(primary)
    with primary.connect() as connection:
        connection.execute("INSERT INTO t VALUES (2)")

    def followed() -> bool:
        with standby.connect() as connection:
            return connection.execute("SELECT sum(n) FROM t").fetchone() == (3,)

    await_condition(followed)
    primary.crash()
    standby.promote()
    with standby.connect() as connection:
        connection.execute("INSERT INTO t VALUES (3)")
        connection.execute("CHECKPOINT")
        assert connection.execute("SELECT timeline_id FROM pg_control_checkpoint()").fetchone() == (2,)


@pytest.mark.parametrize(
    "version", [16, *(pytest.param(v, marks=pytest.mark.long) for v in (13, 14, 15, 17, "18-maven"))]
)
def test_every_version_can_decode(make_server: MakeServer, version: int | str) -> None:
    server = make_server(version)
    with server.connect() as connection:
        assert connection.info.server_version // 10000 == int(str(version)[:2])
    slot_works(server.url())


@pytest.mark.long
def test_a_standby_of_the_oldest_version_follows(
    make_server: MakeServer, make_standby: Callable[[Server], Server]
) -> None:
    standby = make_standby(make_server(13))
    with standby.connect() as connection:
        assert connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,)
    standby.promote()


KILLED = """
import os, signal, sys
from pathlib import Path
from runnel.demo.scratch import Scratch
from runnel.demo.server import Server, embedded_binaries
scratch = Scratch("runnel-killed-")
server = Server(embedded_binaries(), scratch.path / "pg").initialize().start()
print(scratch.path, server.pid, flush=True)
signal.pause()
"""


def test_a_killed_owner_leaves_neither_process_nor_directory() -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", KILLED],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(HERE.parent / "src")},
    )
    with owner:
        assert owner.stdout is not None
        path, pid = owner.stdout.readline().split()
        family = [psutil.Process(int(pid)), *psutil.Process(int(pid)).children(recursive=True)]
        owner.send_signal(signal.SIGKILL)
    await_condition(lambda: not any(process.is_running() for process in family), 15)
    await_condition(lambda: not Path(path).exists(), 15)


def test_a_scratch_directory_is_gone_after_use() -> None:
    with Scratch() as scratch:
        (scratch.path / "deep" / "er").mkdir(parents=True)
    assert not scratch.path.exists()


def answer(connection: psycopg.Connection[tuple[int]]) -> int:
    row = connection.execute("SELECT 1").fetchone()
    assert row is not None
    return row[0]


def test_a_proxy_passes_cuts_and_refuses(pg_server: Server, make_proxy: Callable[[Server], Proxy]) -> None:
    proxy = make_proxy(pg_server)
    url = proxy.url(pg_server.url())
    with psycopg.connect(url) as connection:
        assert answer(connection) == 1
        proxy.cut()
        with pytest.raises(psycopg.OperationalError):
            answer(connection)
    with psycopg.connect(url) as connection:
        big = connection.execute("SELECT repeat('x', 10000000)").fetchone()
        assert big is not None
        assert len(big[0]) == 10_000_000
    proxy.refuse()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)
    proxy.resume()
    with psycopg.connect(url) as connection:
        assert answer(connection) == 1
    assert proxy.connections == 3


def test_a_stalled_proxy_holds_everything_until_it_resumes(
    pg_server: Server, make_proxy: Callable[[Server], Proxy]
) -> None:
    proxy = make_proxy(pg_server)
    with psycopg.connect(proxy.url(pg_server.url()), autocommit=True) as connection:
        answer(connection)
        proxy.stall()
        before = proxy.passed
        connection.pgconn.send_query(b"SELECT 1")
        connection.pgconn.flush()
        waiting = socket.socket(fileno=os.dup(connection.pgconn.socket))
        with waiting:
            waiting.settimeout(0.3)
            with pytest.raises(TimeoutError):
                waiting.recv(1, socket.MSG_PEEK)
            assert proxy.passed == before
            proxy.resume()
            waiting.settimeout(10)
            assert waiting.recv(1, socket.MSG_PEEK)
        while connection.pgconn.get_result() is not None:
            continue


def test_a_stall_of_one_connection_leaves_the_others_alone(
    pg_server: Server, make_proxy: Callable[[Server], Proxy]
) -> None:
    proxy = make_proxy(pg_server)
    url = proxy.url(pg_server.url())
    with psycopg.connect(url) as stalled, psycopg.connect(url) as other:
        with socket.socket(fileno=os.dup(stalled.pgconn.socket)) as silent:
            proxy.stall({silent.getsockname()[1]})
            stalled.pgconn.send_query(b"SELECT 1")
            stalled.pgconn.flush()
            assert answer(other) == 1
            with psycopg.connect(url) as new:
                assert answer(new) == 1
            silent.settimeout(0.1)
            with pytest.raises(TimeoutError):
                silent.recv(1, socket.MSG_PEEK)
            proxy.resume()
            silent.settimeout(10)
            assert silent.recv(1, socket.MSG_PEEK)
        while stalled.pgconn.get_result() is not None:
            continue


def test_a_delay_slows_both_directions(pg_server: Server, make_proxy: Callable[[Server], Proxy]) -> None:
    proxy = make_proxy(pg_server)
    with psycopg.connect(proxy.url(pg_server.url()), autocommit=True) as connection:
        proxy.delay = 0.15
        began = time.monotonic()
        answer(connection)
        assert time.monotonic() - began >= 0.3
