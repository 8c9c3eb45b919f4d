"""What a source's history is, read independently of Runnel, and whether an output equals it.

The oracle is a second slot with test_decoding, made before the traffic: it gives every committed change in
commit order with its transaction id. An output is right when its lines, in the order a plain reader meets
them, are exactly these changes: none missing, none twice, in order; and when applying them to empty
tables gives the rows that the source has.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

CHANGE = re.compile(r"^table (.*?): (INSERT|UPDATE|DELETE|TRUNCATE):", re.S)
Entry = tuple[int, str, str]
"""Transaction id, operation, table as schema.name."""


class Oracle:
    def __init__(self, url: str, slot: str = "oracle") -> None:
        self.url, self.slot = url, slot
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("select pg_create_logical_replication_slot(%s, 'test_decoding')", (slot,))

    def entries(self, schemas: tuple[str, ...] = ("public",)) -> list[Entry]:
        out: list[Entry] = []
        with psycopg.connect(self.url, autocommit=True) as connection:
            rows = connection.execute(
                "select xid::text::bigint, data from pg_logical_slot_peek_changes(%s, null, null,"
                " 'include-xids', '1', 'skip-empty-xacts', '1')",
                (self.slot,),
            ).fetchall()
        top = 0
        for xid, data in rows:
            if data.startswith("BEGIN"):
                top = xid
            match = CHANGE.match(data)
            if match:
                for name in _names(match[1]):
                    if name.split(".")[0] in schemas:
                        out.append((top, match[2].lower(), name))
        return out

    def drop(self) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("select pg_drop_replication_slot(%s)", (self.slot,))


def _names(text: str) -> list[str]:
    """`public.t` or, of a truncate of several, `public.a, public.b`; quoted names unquoted."""
    parts = re.findall(r'(?:"(?:[^"]|"")*"|[^",.]+)\.(?:"(?:[^"]|"")*"|[^",.]+)', text)
    return [
        ".".join(
            piece[1:-1].replace('""', '"') if piece.startswith('"') else piece
            for piece in re.findall(r'"(?:[^"]|"")*"|[^".]+', part.strip())
        )
        for part in parts
    ]


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """As a plain reader does: `*.jsonl` in name order."""
    out: list[dict[str, Any]] = []
    for file in sorted(path.glob("*.jsonl")):
        with open(file, encoding="utf-8", newline="\n") as lines:
            out += parse_jsonl(lines)
    return out


def parse_jsonl(lines: Iterable[str]) -> list[dict[str, Any]]:
    return [json.loads(line, parse_int=_Digits, parse_float=_Digits) for line in lines]


class _Digits(str):
    """A number with the digits it had in the output."""

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, str(other))

    __hash__ = str.__hash__


def lsn_number(text: str) -> int:
    high, low = text.split("/")
    return (int(high, 16) << 32) + int(low, 16)


def assert_equal(expected: list[Entry], lines: Iterable[dict[str, Any]]) -> None:
    lines = [line for line in lines if line["op"] != "message"]
    got: list[Entry] = [
        (int(line["xid"]), line["op"], f"{line['schema']}.{line['table']}") for line in lines
    ]
    places = [(lsn_number(line["lsn"]), int(line["seq"])) for line in lines]
    for before, after in itertools.pairwise(places):
        assert before < after, f"{after} after {before}: out of order or twice"
    if got != expected:
        for index, (left, right) in enumerate(zip(expected, got, strict=False)):
            assert left == right, f"change {index}: expected {left}, got {right}"
        assert len(got) == len(expected), f"{len(got)} changes delivered, {len(expected)} committed"
    starts: dict[str, int] = {}
    for line in lines:
        lsn, seq = line["lsn"], int(line["seq"])
        assert seq == starts.get(lsn, 0), f"seq {seq} in {lsn}, expected {starts.get(lsn, 0)}"
        starts[lsn] = seq + 1


def replay(lines: Iterable[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """The tables these changes build, each row under its key's JSON text."""
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    for line in lines:
        if line["op"] != "truncate" and "key" not in line:
            continue  # a message, or a row that nothing names
        rows = tables.setdefault(f"{line['schema']}.{line['table']}", {})
        if line["op"] == "truncate":
            rows.clear()
            continue
        key = json.dumps(line["key"])
        old = json.dumps({name: line.get("before", line["key"]).get(name) for name in line["key"]})
        if line["op"] == "delete":
            assert rows.pop(key, None) is not None, f"delete of a row that is not there: {line}"
        elif line["op"] == "insert":
            assert key not in rows, f"insert of a row that is there: {line}"
            rows[key] = dict(line["after"])
        else:
            was = rows.pop(old, None)
            assert was is not None, f"update of a row that is not there: {line}"
            after = dict(line["after"])
            for name in line.get("unchanged", ()):
                after[name] = was[name]
            rows[key] = {name: after[name] for name in was if name in after} | after
    return tables


def assert_tables(url: str, lines: Iterable[dict[str, Any]], *tables: str) -> None:
    """The replayed rows are those of the source, value by value as text."""
    built = replay(lines)
    with psycopg.connect(url) as connection:
        connection.execute("set timezone = 'UTC'")
        for label in tables:
            identifier = sql.Identifier(*label.split(".", 1))
            names = [
                c.name
                for c in connection.execute(
                    sql.SQL("select * from {} limit 0").format(identifier)
                ).description
                or ()
            ]
            texts = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(name)) for name in names)
            want = sorted(
                json.dumps(dict(zip(names, row, strict=True)), sort_keys=True)
                for row in connection.execute(sql.SQL("select {} from {}").format(texts, identifier))
            )
            got = sorted(json.dumps(_texts(row), sort_keys=True) for row in built.get(label, {}).values())
            assert got == want, f"{label}: the delivered changes do not build the source's rows"


def _texts(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: ("true" if value else "false") if isinstance(value, bool) else value and str(value)
        for name, value in row.items()
    }
