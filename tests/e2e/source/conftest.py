"""A server of each version for all tests here, and for each test a fresh database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from runnel.demo.server import Server
from runnel.progress.state import State
from servers import Database, binaries

Connect = Callable[[], psycopg.Connection]


@pytest.fixture(
    scope="session", params=[18, *(pytest.param(v, marks=pytest.mark.long) for v in (13, 14, 15, 16, 17))]
)
def server(request: pytest.FixtureRequest, scratch: Path) -> Iterator[Server]:
    settings = {"max_prepared_transactions": 5}
    place = scratch / f"source-{request.param}"
    with Server(binaries(request.param), place, settings).initialize().start() as found:
        yield found


@pytest.fixture
def database(server: Server) -> Iterator[Database]:
    name = f"t{uuid4().hex[:12]}"
    server.create_database(name)
    yield Database(server, name)
    server.drop_database(name)
    with server.connect() as admin:
        admin.execute(f'DROP ROLE IF EXISTS "{name}"'.encode())


@pytest.fixture
def url(database: Database) -> str:
    return database.url


@pytest.fixture
def connect(database: Database) -> Iterator[Connect]:
    """Any number of autocommit connections, closed at the end."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(database.connect())


@pytest.fixture
def state(url: str) -> Iterator[State]:
    with State.connect(url, "shop") as found:
        yield found
