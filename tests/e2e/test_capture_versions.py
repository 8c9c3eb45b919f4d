"""Capture on every supported server: protocol and options by version, the same log from all."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from captured import TABLE, Captured
from servers import MakeServer, await_condition

ROWS = "INSERT INTO t SELECT g, repeat('x', 200) FROM generate_series({}, {}) g"


@pytest.mark.parametrize(
    "version", [16, *(pytest.param(v, marks=pytest.mark.long) for v in (13, 14, 15, 17))]
)
def test_every_server_version_fills_the_same_log(
    make_server: MakeServer, tmp_path: Path, version: int
) -> None:
    server = make_server(version, logical_decoding_work_mem="64kB")
    with server.connect() as connection:
        connection.execute(TABLE.encode())
        connection.execute(b"CREATE TABLE unpublished (id int)")
    c = Captured(server.url(), tmp_path, {"chunk_bytes": "64KiB"}, {"tables": ["public.t"]})
    with c.running():
        c.execute("INSERT INTO t VALUES (1, 'a')")
        c.execute(*[f"INSERT INTO unpublished VALUES ({number})" for number in range(50)])
        with psycopg.connect(c.url) as connection:
            connection.execute(f"SAVEPOINT a; {ROWS.format(1000, 2999)}".encode())
            connection.execute(f"SAVEPOINT b; {ROWS.format(3000, 3999)}".encode())
            connection.execute(b"ROLLBACK TO b")
            connection.execute(f"SAVEPOINT c; {ROWS.format(4000, 4999)}".encode())
            connection.execute(b"RELEASE c")
        c.execute("ALTER TABLE t ADD COLUMN w int", "INSERT INTO t VALUES (2, 'b', 3)")
        c.await_ids(1, *range(1000, 3000), *range(4000, 5000), 2)
        assert any(header.streamed for header in c.headers()) == (version >= 14)
        if version >= 14:
            c.execute("SELECT pg_logical_emit_message(false, 'app', '77')")
            c.await_ids(1, *range(1000, 3000), *range(4000, 5000), 2, 77)
        end = c.headers()[-1].end
        c.deliver(end)
        await_condition(lambda: c.confirmed() >= end)
    with c.running():
        c.execute("INSERT INTO t VALUES (3, 'c', 4)")
        await_condition(lambda: c.ids()[-1:] == [3])
