"""Every value a server can hold: a table with a column for each, its row, and the JSON that is due for it."""

from __future__ import annotations

import json
from typing import Any

import psycopg

Connection = psycopg.Connection[Any]

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


def check_row(line: str, expected: str) -> None:
    found = line.partition('"after":')[2].removesuffix("}")
    for mine, due in zip(found.split(',"c'), expected.split(',"c'), strict=True):
        assert mine == due
    assert found == expected
