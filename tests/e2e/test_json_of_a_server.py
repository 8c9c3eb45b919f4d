"""What a real server sends, decoded and written as the default JSON: every type, every kind of change."""

from __future__ import annotations

import json
import struct
import subprocess
from datetime import date
from typing import Any

import psycopg
import pytest

from changefeed import MemoryChunk
from runnel.capture.protocol import parse_relation
from runnel.capture.relations import Catalogue
from runnel.changes.decode import decode
from runnel.log.api import OpenTransaction
from runnel.marshal.json import lines
from runnel.marshal.typed import typed
from runnel.postgres.lsn import Lsn
from servers import Database, MakeServer

Connection = psycopg.Connection[Any]

SETTINGS = (
    "SET datestyle = ISO; SET timezone = UTC; SET intervalstyle = postgres; "
    "SET extra_float_digits = 3; SET bytea_output = hex"
)
TYPES = (
    "CREATE TYPE mood AS ENUM ('sad', 'ok \"x\"')",
    "CREATE DOMAIN positive AS int CHECK (value > 0)",
    "CREATE DOMAIN more_positive AS positive",
    "CREATE DOMAIN pair AS int[]",
    "CREATE TYPE item AS (a int, b text)",
)
# type, Postgres' literal, JSON
VALUES = (
    ("int2", "'-32768'", "-32768"),
    ("int8", "'9223372036854775807'", "9223372036854775807"),
    ("numeric", "'12345678901234567890.1234567890'", "12345678901234567890.1234567890"),
    ("numeric", "'NaN'", '"NaN"'),
    ("numeric(10,3)", "'1.5'", "1.500"),
    ("float4", "'3.4028235e38'", "3.4028235e+38"),
    ("float8", "'0.1'", "0.1"),
    ("float8", "'-Infinity'", '"-Infinity"'),
    ("oid", "'4294967295'", "4294967295"),
    ("bool", "'t'", "true"),
    ("bool", "'f'", "false"),
    ("text", "NULL", "null"),
    ("text", "''", '""'),
    ("text", r"E'say \"hi\"\\\n\t\x01 \u00e9 \U0001F388'", '"say \\"hi\\"\\\\\\n\\t\\u0001 é 🎈"'),
    ("char(5)", "'ab'", '"ab   "'),
    ('"char"', "'c'", '"c"'),
    ("name", "'n'", '"n"'),
    ("bytea", r"'\x00ff5c22'", r'"\\x00ff5c22"'),
    ("date", "'2026-01-02'", '"2026-01-02"'),
    ("timestamp", "'infinity'", '"infinity"'),
    ("timestamptz", "'0044-03-15 12:00:00+02 BC'", '"0044-03-15 10:00:00+00 BC"'),
    ("timetz", "'12:00+02'", '"12:00:00+02"'),
    ("interval", "'1 year 2 days 03:04:05.5'", '"1 year 2 days 03:04:05.5"'),
    ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", '"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"'),
    ("json", r"""E'{\n "a" : 1,\r\n "b":"x\\ny"}'""", r'{  "a" : 1,   "b":"x\ny"}'),
    ("jsonb", """'{"b":1,"a":[1,null]}'""", '{"a": [1, null], "b": 1}'),
    ("int[]", "'{{1,2},{3,NULL}}'", "[[1,2],[3,null]]"),
    ("int[]", "'[2:4]={1,2,3}'", '"[2:4]={1,2,3}"'),
    ("int[]", "'{}'", "[]"),
    ("text[]", "ARRAY['a', '', 'NULL', NULL, 'b \"c\"', '{x}']", '["a","","NULL",null,"b \\"c\\"","{x}"]'),
    ("text[]", "ARRAY['plain', NULL, 'ones']", '["plain",null,"ones"]'),
    ("bool[]", "'{t,f,NULL}'", "[true,false,null]"),
    ("numeric[]", "'{1.50,NaN,NULL}'", '[1.50,"NaN",null]'),
    ("jsonb[]", """ARRAY['{"a":"x"}', NULL]::jsonb[]""", '[{"a": "x"},null]'),
    ("json[]", r"""ARRAY[E'{\n"a":1}']::json[]""", '[{ "a":1}]'),
    ("box[]", "'{(1,1),(0,0);(2,2),(1,1)}'", '["(1,1),(0,0)","(2,2),(1,1)"]'),
    ("more_positive", "'5'", "5"),
    ("positive[]", "'{5,6}'", "[5,6]"),
    ("pair", "'{1,2}'", "[1,2]"),
    ("pair[]", """'{"{1,2}","{3}"}'""", "[[1,2],[3]]"),
    ("mood", "'ok \"x\"'", '"ok \\"x\\""'),
    ("mood[]", "ARRAY['sad', 'ok \"x\"']::mood[]", '["sad","ok \\"x\\""]'),
    ("item", "ROW(1, 'a,b')", r'"(1,\"a,b\")"'),
    ("item[]", "ARRAY[ROW(1, 'a')::item]", '["(1,a)"]'),
    ("int4range", "'[1,5)'", '"[1,5)"'),
    ("inet", "'10.0.0.1/8'", '"10.0.0.1/8"'),
    ("bit(3)", "'101'", '"101"'),
    ("point", "'(1,2)'", '"(1,2)"'),
    ("int2vector", "'1 2'", '"1 2"'),
    ("pg_lsn", "'16/B374D848'", '"16/B374D848"'),
)
# type, Postgres' literal, Postgres' text: what is written as text. Extremes, and types that are nothing else
TEXTS = (
    ("date", "'4714-11-24 BC'", "4714-11-24 BC"),
    ("date", "'5874897-12-31'", "5874897-12-31"),
    ("date", "'-infinity'", "-infinity"),
    ("time", "'00:00'", "00:00:00"),
    ("time", "'24:00'", "24:00:00"),
    ("time(3)", "'23:59:59.999'", "23:59:59.999"),
    ("timetz", "'00:00:00+15:59:59'", "00:00:00+15:59:59"),
    ("timetz", "'24:00:00-15:59:59'", "24:00:00-15:59:59"),
    ("timestamp", "'4714-11-24 00:00:00 BC'", "4714-11-24 00:00:00 BC"),
    ("timestamp", "'294276-12-31 23:59:59.999999'", "294276-12-31 23:59:59.999999"),
    ("timestamptz", "'4714-11-24 00:00:00+00 BC'", "4714-11-24 00:00:00+00 BC"),
    ("timestamptz", "'294276-12-31 23:59:59.999999+00'", "294276-12-31 23:59:59.999999+00"),
    ("timestamptz", "'-infinity'", "-infinity"),
    ("interval", "'178000000 years'", "178000000 years"),
    ("interval", "'-178000000 years'", "-178000000 years"),
    ("interval", "'-1 year +2 days -03:04:05.000001'", "-1 years +2 days -03:04:05.000001"),
    ("interval", "'0'", "00:00:00"),
    ("money", "'-92233720368547758.08'", "-$92,233,720,368,547,758.08"),
    ("varchar(3)", "'ab '", "ab "),
    ("char(3)", "''", "   "),
    ("name", "repeat('n', 63)", "n" * 63),
    ("text", "repeat('é', 200000)", "é" * 200_000),
    ("bytea", "''", r"\x"),
    ("bytea", f"decode('{bytes(range(256)).hex()}', 'hex')", rf"\x{bytes(range(256)).hex()}"),
    ("uuid", "'ffffffff-ffff-ffff-ffff-ffffffffffff'", "ffffffff-ffff-ffff-ffff-ffffffffffff"),
    ("macaddr", "'ff:ff:ff:ff:ff:ff'", "ff:ff:ff:ff:ff:ff"),
    ("macaddr8", "'08:00:2b:01:02:03:04:05'", "08:00:2b:01:02:03:04:05"),
    ("cidr", "'0.0.0.0/0'", "0.0.0.0/0"),
    ("cidr", "'2001:db8::/32'", "2001:db8::/32"),
    ("inet", "'255.255.255.255'", "255.255.255.255"),
    ("inet", "'::ffff:1.2.3.4/96'", "::ffff:1.2.3.4/96"),
    ("inet", "'::'", "::"),
    ("xml", "'<a b=\"c\">é</a>'", '<a b="c">é</a>'),
    ("tsvector", "$$'a':1A 'b c':2,16383$$", "'a':1A 'b c':2,16383"),
    ("tsquery", "$$'a' & !'b' <-> 'c':*$$", "'a' & !'b' <-> 'c':*"),
    ("line", "'{1,-2,3.5}'", "{1,-2,3.5}"),
    ("lseg", "'[(1,2),(3,4)]'", "[(1,2),(3,4)]"),
    ("path", "'((1,2),(3,4))'", "((1,2),(3,4))"),
    ("path", "'[(1,2),(3,4)]'", "[(1,2),(3,4)]"),
    ("polygon", "'((0,0),(1,1e300),(1,0))'", "((0,0),(1,1e+300),(1,0))"),
    ("circle", "'<(1,2),0.1>'", "<(1,2),0.1>"),
    ("box", "'(1,2),(-Infinity,0)'", "(1,2),(-Infinity,0)"),
    ("bit varying", "''", ""),
    ("bit varying(70)", "repeat('10', 35)::varbit", "10" * 35),
    ("int4range", "'empty'", "empty"),
    ("int4range", "'[-2147483648,2147483647)'", "[-2147483648,2147483647)"),
    ("int8range", "'(,)'", "(,)"),
    ("numrange", "'(1.50,NaN]'", "(1.50,NaN]"),
    ("tsrange", "'[-infinity,2026-01-02 03:04)'", '[-infinity,"2026-01-02 03:04:00")'),
    ("tstzrange", "'[2026-01-02 00:00+02,)'", '["2026-01-01 22:00:00+00",)'),
    ("daterange", "'[4714-11-24 BC,2026-01-02]'", '["4714-11-24 BC",2026-01-03)'),
    ("jsonpath", "'$.a[*] ? (@ > 1)'", '$."a"[*]?(@ > 1)'),
    ("xid", "'4294967295'", "4294967295"),
    ("xid8", "'18446744073709551615'", "18446744073709551615"),
    ("cid", "'1'", "1"),
    ("tid", "'(4294967294,65535)'", "(4294967294,65535)"),
    ("oidvector", "'1 4294967295'", "1 4294967295"),
    ("regclass", "'pg_class'", "pg_class"),
    ("regtype", "'timestamptz'", "timestamp with time zone"),
    ("regproc", "'now'", "now"),
    ("regprocedure", "'now()'", "now()"),
    ("regoper", "'||/'", "||/"),
    ("regoperator", "'+(integer,integer)'", "+(integer,integer)"),
    ("regconfig", "'english'", "english"),
    ("regdictionary", "'simple'", "simple"),
    ("regnamespace", "'pg_catalog'", "pg_catalog"),
    ("regrole", "'pg_monitor'", "pg_monitor"),
    ("regcollation", "'\"C\"'", '"C"'),
    ("pg_lsn", "'FFFFFFFF/FFFFFFFF'", "FFFFFFFF/FFFFFFFF"),
    ("txid_snapshot", "'10:20:10,14'", "10:20:10,14"),
    ("pg_snapshot", "'10:20:10,14'", "10:20:10,14"),
    ("refcursor", "'c'", "c"),
    ("aclitem", "'postgres=r/postgres'", "postgres=r/postgres"),
)
NUMBERS = (
    ("int2", "32767"),
    ("int4", "-2147483648"),
    ("int8", "-9223372036854775808"),
    ("oid", "0"),
    ("float4", "1e-45"),
    ("float4", "-3.4028235e+38"),
    ("float8", "5e-324"),
    ("float8", "1.7976931348623157e+308"),
    ("float8", "-0"),
    ("numeric", "9" * 131_072),
    ("numeric", "-0." + "0" * 16_382 + "1"),
    ("numeric", "0.00"),
)
"""Type, and the digits that go in and come out."""
NEWER = {
    14: (
        ("numeric", "'Infinity'", '"Infinity"'),
        ("numeric", "'-Infinity'", '"-Infinity"'),
        ("numeric[]", "'{Infinity,-Infinity}'", '["Infinity","-Infinity"]'),
        ("int4multirange", "'{[1,3),[5,7)}'", '"{[1,3),[5,7)}"'),
        ("int8multirange", "'{(,)}'", '"{(,)}"'),
        ("nummultirange", "'{}'", '"{}"'),
        ("datemultirange", "'{[2026-01-01,infinity)}'", '"{[2026-01-01,infinity)}"'),
        ("tsmultirange", "'{[2026-01-01,)}'", r'"{[\"2026-01-01 00:00:00\",)}"'),
        ("tstzmultirange", "'{[2026-01-01 00:00+00,)}'", r'"{[\"2026-01-01 00:00:00+00\",)}"'),
    ),
    17: (("interval", "'-infinity'", '"-infinity"'),),
}
"""By the version they came with."""


def values_of(connection: Connection) -> list[tuple[str, str, str]]:
    """What this server can hold: type, literal, JSON."""
    out = list(VALUES)
    out += [(kind, literal, json.dumps(text, ensure_ascii=False)) for kind, literal, text in TEXTS]
    out += [(kind, f"'{digits}'", digits) for kind, digits in NUMBERS]
    major = connection.info.server_version // 10_000
    out += [value for version, values in NEWER.items() if version <= major for value in values]
    try:
        connection.execute(b"SELECT '<a/>'::xml")
    except psycopg.errors.FeatureNotSupported:  # this package was built without libxml
        out = [value for value in out if value[0] != "xml"]
    return out


def make_every(connection: Connection) -> str:
    """A table with a column for each value. Gives back its row's JSON."""
    for statement in TYPES:
        connection.execute(statement.encode())
    values = values_of(connection)
    columns = ", ".join(f"c{number} {kind}" for number, (kind, _, _) in enumerate(values))
    connection.execute(f"CREATE TABLE every (id int PRIMARY KEY, {columns})".encode())
    return '{"id":1' + "".join(f',"c{number}":{value}' for number, (_, _, value) in enumerate(values)) + "}"


def fill_every(connection: Connection) -> None:
    literals = ", ".join(literal for _, literal, _ in values_of(connection))
    connection.execute(f"INSERT INTO every VALUES (1, {literals})".encode())


def subscribe(connection: Connection) -> None:
    connection.execute("CREATE PUBLICATION p FOR ALL TABLES")
    connection.execute(
        "SELECT pg_create_logical_replication_slot('decode_' || current_database(), 'pgoutput')"
    )


def received(connection: Connection, **options: str) -> list[tuple[Lsn, bytes]]:
    connection.execute(SETTINGS)
    chosen = {"proto_version": "1", "publication_names": "p", **options}
    rows = connection.execute(
        "SELECT lsn::text, data FROM pg_logical_slot_get_binary_changes("
        "'decode_' || current_database(), NULL, NULL, VARIADIC %s)",
        [[text for option in chosen.items() for text in option]],
    ).fetchall()
    return [(Lsn.parse(lsn), data) for lsn, data in rows]


def chunk_of(url: str, messages: list[tuple[Lsn, bytes]], **header: Any) -> MemoryChunk:
    """These messages as a chunk, their relations as capture describes them."""
    catalogue = Catalogue(lambda: psycopg.connect(url, autocommit=True))
    frames, changed = [], []
    for lsn, message in messages:
        if message[:1] == b"R":
            parsed = parse_relation(memoryview(message), streamed=header.get("streamed", False))
            changed.append((len(frames), catalogue.describe([parsed], [])[0]))
        frames.append(b"w" + struct.pack(">QQq", lsn, lsn, 0) + message)
    catalogue.close()
    return MemoryChunk(frames, [], changed, [len(frames) // 2], **header)


def written(url: str, messages: list[tuple[Lsn, bytes]], **header: Any) -> list[str]:
    found: list[str] = []
    for window in decode(chunk_of(url, messages, **header), Lsn(0)):
        found += bytes(lines(window).data).decode().splitlines()
    return found


def check_types(connection: Connection, url: str) -> None:
    expected = make_every(connection)
    subscribe(connection)
    fill_every(connection)
    [line] = written(url, received(connection))
    check_row(line, expected)


def check_row(line: str, expected: str) -> None:
    found = line.partition('"after":')[2].removesuffix("}")
    for mine, due in zip(found.split(',"c'), expected.split(',"c'), strict=True):
        assert mine == due
    assert found == expected


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
    tool = [server.installation / "bin" / "pg_resetwal", "-o", "2147483640", "-D", server.data]
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
