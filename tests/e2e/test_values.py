"""Every built-in type with its extreme values arrives as Postgres itself writes it."""

from __future__ import annotations

import json
from collections.abc import Callable

import psycopg
from psycopg import sql

from history import read_jsonl
from product import Runnel
from servers import Database

NUMBERS = {
    "smallint": ["-32768", "32767", "0"],
    "integer": ["-2147483648", "2147483647"],
    "bigint": ["-9223372036854775808", "9223372036854775807", "9007199254740993"],
    "numeric": [
        "0",
        "-0.00000000000000000001",
        "1234567890123456789012345678901234567890.12345",
        "1e300",
        "87109.000000",
    ],
    "numeric(10,2)": ["-99999999.99", "0.00"],
    "real": ["1e-37", "3.4028235e38", "0.1"],
    "double precision": ["2.2250738585072014e-308", "1.7976931348623157e308", "0.1", "-0"],
    "oid": ["0", "4294967295"],
}
WORDS = {
    "numeric": ["NaN", "Infinity", "-Infinity"],
    "real": ["NaN", "Infinity"],
    "double precision": ["-Infinity"],
}
TEXTS = {
    "text": ["", " ", "null", "NULL", "\\N", "a\tb\nc\rd\x01\x1f\x7f", 'q"\\/', "Zürich 漢字 😀", "x" * 100_000],
    "varchar(5)": ["abcde", ""],
    "char(5)": ["ab", ""],
    "name": ["n" * 63],
    '"char"': ["x", ""],
    "bytea": [r"\x", r"\x00ff5c22"],
    "uuid": ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"],
    "date": ["4713-01-01 BC", "5874897-12-31", "infinity", "-infinity", "2026-11-18"],
    "time": ["00:00:00", "24:00:00", "23:59:59.999999"],
    "timetz": ["00:00:00+15:59", "24:00:00-15:59"],
    "timestamp": ["4713-01-01 00:00:00 BC", "294276-12-31 23:59:59.999999", "infinity", "-infinity"],
    "timestamptz": ["4713-01-01 00:00:00+00 BC", "294276-12-31 23:59:59.999999+00", "infinity", "12000-01-01+00"],
    "interval": ["-178000000 years", "178000000 years", "1 mon -1 day +00:00:00.000001", "0"],
    "money": ["-92233720368547758.08", "92233720368547758.07"],
    "bit(3)": ["101"],
    "varbit": ["", "1010101"],
    "inet": ["::1", "192.168.0.1/24"],
    "cidr": ["::/0", "10.0.0.0/8"],
    "macaddr": ["08:00:2b:01:02:03"],
    "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "point": ["(1e300,-1e-300)"],
    "line": ["{1,-1,0}"],
    "lseg": ["[(0,0),(1,1)]"],
    "box": ["(1,1),(0,0)"],
    "path": ["((0,0),(1,1))", "[(0,0),(1,1)]"],
    "polygon": ["((0,0),(1,1),(1,0))"],
    "circle": ["<(0,0),1e10>"],
    "tsvector": ["'a':1A 'b''c':2"],
    "tsquery": ["'a' & !'b'"],
    "xml": ["<a>\"x\" & y</a>".replace("&", "&amp;")],
    "pg_lsn": ["0/0", "FFFFFFFF/FFFFFFFF"],
    "int4range": ["empty", "[1,10)", "(,)"],
    "numrange": ["[1.50,2)"],
    "tstzrange": ['["2026-01-01 00:00:00+00",infinity)'],
    "daterange": ["[2026-01-01,)"],
    "txid_snapshot": ["10:20:10,14,15"],
    "jsonpath": ['$."a"[*]'],
    "regclass": ["pg_class"],
    "mood": ["sad", "it's \"ok\""],
    "pair": ['(1,"a ""b"" c")', "(,)"],
}  # fmt: skip
JSONS = {
    "json": ['{"a": 1,\n "b":[null, "\\u00e4 \\n"], "n": 1e400}', "null", '"x"'],
    "jsonb": ['{"a": 12345678901234567890.10}', "[]"],
}
ARRAYS = {
    "int[]": ["{}", "{1,NULL,-3}", "{{1,2},{3,4}}"],
    "bigint[]": ["{9223372036854775807}"],
    "text[]": ['{a,"b c","q\\"\\\\","NULL",NULL,""}', "{Zürich}"],
    "boolean[]": ["{t,f,NULL}"],
    "numeric[]": ["{1.50,NaN}"],
    "jsonb[]": ['{"{\\"a\\": [1, 2]}"}'],
    "timestamptz[]": ['{"2026-01-01 00:00:00+00"}'],
    "box[]": ["{(1,1),(0,0);(2,2),(1,1)}"],
    "mood[]": ["{sad}"],
}
BOUNDED = ["[2:4]={1,2,3}"]
DOMAINS = {"price": ("numeric", ["12.50"]), "email": ("text", ["a@b"]), "tags": ("text[]", ["{x,y}"])}
SETUP = """
create type mood as enum ('sad', 'it''s "ok"');
create type pair as (a int, b text);
create domain price as numeric(10,2); create domain email as text; create domain tags as text[];
create table v (id int primary key, kind text, t text);
"""


def test_every_type_arrives_as_postgres_writes_it(make_runnel: Callable[..., Runnel], pg: Database) -> None:
    cases: list[tuple[str, str]] = []
    for group in (NUMBERS, WORDS, TEXTS, JSONS, ARRAYS):
        cases += [(kind, value) for kind, values in group.items() for value in values]
    cases += [("int[]", value) for value in BOUNDED]
    cases += [(kind, value) for kind, (_, values) in DOMAINS.items() for value in values]
    cases += [("boolean", "t"), ("boolean", "f")]
    kinds = sorted({kind for kind, _ in cases})
    with psycopg.connect(pg.url, autocommit=True) as connection:
        connection.execute(SETUP)
        for number, kind in enumerate(kinds):
            connection.execute(
                sql.SQL("create table {} (id int primary key, v " + kind + ", w " + kind + ")").format(
                    sql.Identifier(f"t{number}")
                )
            )
    runnel = make_runnel(pg.url)
    runnel.run("init")
    want: dict[tuple[int, int], str] = {}
    with psycopg.connect(pg.url, autocommit=True) as connection:
        connection.execute("set datestyle = 'ISO'; set timezone = 'UTC'; set intervalstyle = 'postgres'")
        for index, (kind, value) in enumerate(cases):
            number = kinds.index(kind)
            connection.execute(
                sql.SQL("insert into {} values ({}, {}::text::" + kind + ", null)").format(
                    sql.Identifier(f"t{number}"), index, value
                )
            )
            row = connection.execute(
                sql.SQL("select v::text from {} where id = {}").format(sql.Identifier(f"t{number}"), index)
            ).fetchone()
            assert row is not None
            want[number, index] = row[0]
    runnel.run("run", "--once")
    lines = {(int(line["table"][1:]), int(line["key"]["id"])): line for line in read_jsonl(runnel.out)}
    assert len(lines) == len(cases)
    for place, text in want.items():
        kind, value = cases[place[1]]
        after = lines[place]["after"]
        assert after["w"] is None
        got = after["v"]
        base = DOMAINS[kind][0] if kind in DOMAINS else kind
        if base == "boolean":
            assert got is (text == "true"), (kind, value)
        elif base in JSONS:
            assert json.dumps(got) == json.dumps(json.loads(text, parse_int=str, parse_float=str)), (
                kind,
                value,
            )
        elif base in ARRAYS and value not in BOUNDED:
            assert isinstance(got, list), (kind, value)
        else:
            assert isinstance(got, str), (kind, value)
            assert got == text, (kind, value)
    assert lines[kinds.index("int[]"), cases.index(("int[]", "{1,NULL,-3}"))]["after"]["v"] == [
        "1",
        None,
        "-3",
    ]
    assert lines[kinds.index("int[]"), cases.index(("int[]", "{{1,2},{3,4}}"))]["after"]["v"] == [
        ["1", "2"],
        ["3", "4"],
    ]
    assert lines[kinds.index("text[]"), cases.index(("text[]", ARRAYS["text[]"][0]))]["after"]["v"] == [
        "a", "b c", 'q"\\', "NULL", None, "",
    ]  # fmt: skip
    assert lines[kinds.index("jsonb[]"), cases.index(("jsonb[]", ARRAYS["jsonb[]"][0]))]["after"]["v"] == [
        {"a": ["1", "2"]}
    ]
    assert lines[kinds.index("box[]"), cases.index(("box[]", ARRAYS["box[]"][0]))]["after"]["v"] == [
        "(1,1),(0,0)", "(2,2),(1,1)",
    ]  # fmt: skip
