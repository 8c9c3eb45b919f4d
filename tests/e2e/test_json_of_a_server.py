"""What a real server sends, decoded and written as the default JSON: every type, every kind of change."""

from __future__ import annotations

import json
import struct
import subprocess
from datetime import date
from pathlib import Path
from typing import Any

import psycopg
import pytest

from runnel.changes.decode import decode
from runnel.log.api import OpenTransaction
from runnel.marshal.json import lines
from runnel.marshal.typed import typed
from runnel.postgres.lsn import Lsn
from servers import Database, MakeServer
from slots import chunk_of, received, subscribe, written
from values import check_row, fill_every, make_every

Connection = psycopg.Connection[Any]


def check_types(connection: Connection, url: str) -> None:
    expected = make_every(connection)
    subscribe(connection)
    fill_every(connection)
    [line] = written(url, received(connection))
    check_row(line, expected)


def test_every_type_is_written_by_the_rules(pg: Database) -> None:
    with pg.connect() as connection:
        check_types(connection, pg.url)


@pytest.mark.long
@pytest.mark.parametrize("version", [13, 14, 15, 16, 17])
def test_every_type_is_written_by_the_rules_on_every_version(make_server: MakeServer, version: int) -> None:
    server = make_server(version)
    with server.connect() as connection:
        check_types(connection, server.url())


def test_tables_and_types_with_oids_past_the_middle_of_their_range_are_read(
    make_server: MakeServer,
) -> None:
    server = make_server(18)
    server.stop()
    tool: list[str | Path] = [
        server.installation / "bin" / "pg_resetwal",
        "-o",
        "2147483640",
        "-D",
        server.data,
    ]
    subprocess.run(tool, check=True, stdout=subprocess.DEVNULL, **server._as_user())
    server.start()
    with server.connect() as connection:
        names = [f"t{number}" for number in range(6)]
        connection.execute(b"CREATE TYPE mood AS ENUM ('sad')")
        for name in names:
            connection.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, m mood)".encode())
        subscribe(connection)
        for name in names:
            connection.execute(f"INSERT INTO {name} VALUES (1, 'sad')".encode())
        connection.execute(b"ALTER TABLE t5 ADD n int")
        for name in names:
            connection.execute(f"UPDATE {name} SET id = 2".encode())
        oids = [row[0] for row in connection.execute("SELECT oid::int8 FROM pg_class WHERE relkind = 'r'")]
        found = [json.loads(line) for line in written(server.url(), received(connection))]
    assert min(oids) < 2**31 <= max(oids)
    assert [line["table"] for line in found] == names + names
    assert [line["after"]["m"] for line in found] == ["sad"] * 12
    assert found[-1]["after"] == {"id": 2, "m": "sad", "n": None}


def test_a_users_type_is_not_taken_for_a_built_in_one_of_the_same_name(pg: Database) -> None:
    own = ("bool", "date", "bytea", "int4", "numeric", "char", "timestamptz")
    columns = ", ".join(f'{name}_ public."{name}"' for name in own)
    with pg.connect() as connection:
        for name in own:
            connection.execute(f"CREATE TYPE public.\"{name}\" AS ENUM ('t', 'x')".encode())
        connection.execute(b"CREATE DOMAIN day AS pg_catalog.date; CREATE DOMAIN yes AS pg_catalog.bool")
        connection.execute(
            f"CREATE TABLE odd (id pg_catalog.int4 PRIMARY KEY, d day, y yes, {columns})".encode()
        )
        subscribe(connection)
        connection.execute(b"INSERT INTO odd VALUES (1, '2026-01-02', true" + b", 'x'" * len(own) + b")")
        chunk = chunk_of(pg.url, received(connection))
    [line] = [json.loads(bytes(lines(window).data)) for window in decode(chunk, Lsn(0))]
    [some] = [found for window in decode(chunk, Lsn(0)) for found in typed(window)]
    plain = {f"{name}_": "x" for name in own}
    assert line["after"] == {"id": 1, "d": "2026-01-02", "y": True, **plain}
    assert some.misfits == []
    assert some.rows.drop_columns([n for n in some.rows.schema.names if n[0] == "_"]).to_pylist() == [
        {"id": 1, "d": date(2026, 1, 2), "y": True, **plain}
    ]


def test_every_kind_of_change_says_what_the_wal_has(pg: Database) -> None:
    tables = (
        "CREATE TABLE toasted (id int PRIMARY KEY, big text, n int)",
        "CREATE TABLE whole (id int PRIMARY KEY, big text, n int)",
        "ALTER TABLE whole REPLICA IDENTITY FULL",
        "CREATE TABLE indexed (id int PRIMARY KEY, email text NOT NULL UNIQUE)",
        "ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_email_key",
        "CREATE TABLE keyless (a int, b text)",
        "ALTER TABLE keyless REPLICA IDENTITY FULL",
    )
    with pg.connect() as connection:
        for statement in tables:
            connection.execute(statement.encode())
        for table in ("toasted", "whole"):
            connection.execute(f"ALTER TABLE {table} ALTER big SET STORAGE EXTERNAL".encode())
        subscribe(connection)
        for table in ("toasted", "whole"):
            connection.execute(f"INSERT INTO {table} VALUES (1, repeat('x', 5000), 1)".encode())
            connection.execute(f"UPDATE {table} SET n = 2".encode())
            connection.execute(f"UPDATE {table} SET id = 5".encode())
            connection.execute(f"DELETE FROM {table}".encode())
        for statement in (
            "INSERT INTO indexed VALUES (1, 'a')",
            "UPDATE indexed SET email = 'b'",
            "DELETE FROM indexed",
            "INSERT INTO keyless VALUES (1, NULL)",
            "UPDATE keyless SET b = 'x'",
            "BEGIN; ALTER TABLE keyless ADD c int; INSERT INTO keyless VALUES (2, 'y', 3); "
            "TRUNCATE indexed, keyless; COMMIT",
            "SELECT pg_logical_emit_message(false, 'alone', '\\xff00'::bytea)",
            "BEGIN; SELECT pg_logical_emit_message(true, 'runnel', 'x'); "
            "SELECT pg_logical_emit_message(true, 'app', 'é'); COMMIT",
        ):
            connection.execute(statement.encode())
        found = [json.loads(line) for line in written(pg.url, received(connection, messages="true"))]
    big = "x" * 5000
    stamps = ("schema", "table", "lsn", "seq", "xid", "time")
    assert [{k: v for k, v in line.items() if k not in stamps} for line in found] == [
        {"op": "insert", "key": {"id": 1}, "after": {"id": 1, "big": big, "n": 1}},
        {"op": "update", "key": {"id": 1}, "after": {"id": 1, "n": 2}, "unchanged": ["big"]},
        {
            "op": "update",
            "key": {"id": 5},
            "before": {"id": 1},
            "after": {"id": 5, "n": 2},
            "unchanged": ["big"],
        },
        {"op": "delete", "key": {"id": 5}, "before": {"id": 5}},
        {"op": "insert", "key": {"id": 1}, "after": {"id": 1, "big": big, "n": 1}},
        {
            "op": "update",
            "key": {"id": 1},
            "before": {"id": 1, "big": big, "n": 1},
            "after": {"id": 1, "big": big, "n": 2},
        },
        {
            "op": "update",
            "key": {"id": 5},
            "before": {"id": 1, "big": big, "n": 2},
            "after": {"id": 5, "big": big, "n": 2},
        },
        {"op": "delete", "key": {"id": 5}, "before": {"id": 5, "big": big, "n": 2}},
        {"op": "insert", "key": {"id": 1}, "after": {"id": 1, "email": "a"}},
        {"op": "update", "key": {"id": 1}, "before": {"email": "a"}, "after": {"id": 1, "email": "b"}},
        {"op": "delete", "key": {"email": "b"}, "before": {"email": "b"}},
        {"op": "insert", "after": {"a": 1, "b": None}},
        {"op": "update", "before": {"a": 1, "b": None}, "after": {"a": 1, "b": "x"}},
        {"op": "insert", "after": {"a": 2, "b": "y", "c": 3}},
        {"op": "truncate"},
        {"op": "truncate"},
        {"op": "message", "prefix": "alone", "content": "/wA=", "encoding": "base64"},
        {"op": "message", "prefix": "app", "content": "é"},
    ]
    assert [line["table"] for line in found if line["op"] == "truncate"] == ["indexed", "keyless"]
    assert [line["seq"] for line in found[-5:]] == [0, 1, 2, 0, 1]
    assert "xid" not in found[-2]


def test_a_transaction_streamed_while_open_is_read_with_its_own_xid(pg: Database) -> None:
    with pg.connect() as connection:
        connection.execute("CREATE TABLE rows (id int PRIMARY KEY, t text)")
        subscribe(connection)
        with connection.transaction():
            [xid] = connection.execute("SELECT txid_current()").fetchone() or (0,)
            connection.execute("INSERT INTO rows SELECT g, 'v' FROM generate_series(1, 3000) g")
            for first, kept in ((3001, False), (3001, True)):
                connection.execute("SAVEPOINT s")
                connection.execute(
                    "INSERT INTO rows SELECT g, %s FROM generate_series(%s::int, 5000) g",
                    [str(kept), first],
                )
                if not kept:
                    connection.execute("ROLLBACK TO s")
            connection.execute("SELECT pg_logical_emit_message(true, 'app', 'in it')")
            connection.execute("TRUNCATE rows")
        connection.execute("SET logical_decoding_work_mem = '64kB'")
        got = received(connection, proto_version="2", streaming="on", messages="true")
        [commit] = [data for _, data in got if data[:1] == b"c"]
        top, _, lsn, end, time = struct.unpack(">IBQQq", commit[1:30])
        aborted = {struct.unpack(">II", data[1:9])[1] for _, data in got if data[:1] == b"A"}
        kept_frames = [
            (at, data)
            for at, data in got
            if data[:1] in b"RYIUDTM" and struct.unpack(">I", data[1:5])[0] not in aborted
        ]
        own = OpenTransaction(top, Lsn(lsn), Lsn(end), time + 946_684_800_000_000)
        found = [json.loads(x) for x in written(pg.url, kept_frames, streamed=True, transaction=own)]
    assert aborted
    assert [line["seq"] for line in found] == list(range(5002))
    assert {line["xid"] for line in found} == {xid % 2**32}
    assert [line["after"]["id"] for line in found[:-2]] == list(range(1, 5001))
    assert {line["after"]["t"] for line in found[3000:-2]} == {"True"}
    assert [line["op"] for line in found[-2:]] == ["message", "truncate"]
