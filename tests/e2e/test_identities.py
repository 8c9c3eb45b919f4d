"""What is said of old rows is true, whatever tells a table's rows apart: identities of tables and of
partitions, as the catalogue judges them and as a server's changes then are read."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from runnel.changes.decode import decode
from runnel.marshal.json import lines
from runnel.postgres import catalog
from runnel.postgres.connect import connect as open_connection
from runnel.postgres.lsn import Lsn
from servers import Database, MakeServer
from slots import chunk_of, received, subscribe, written

Connection = psycopg.Connection[Any]

COLUMNS = "id int NOT NULL, email text NOT NULL, big text, n int"
INDEX = "CREATE UNIQUE INDEX {0}_by ON {0} (id, email); ALTER TABLE {0} REPLICA IDENTITY USING INDEX {0}_by"
BESIDE = "CREATE UNIQUE INDEX e ON {0} (email); ALTER TABLE {0} REPLICA IDENTITY USING INDEX e"
FULL = "ALTER TABLE {0} REPLICA IDENTITY FULL"
NOTHING = "ALTER TABLE {0} REPLICA IDENTITY NOTHING"
KEY = "ALTER TABLE {0} ADD PRIMARY KEY (id)"
WIDER = "ALTER TABLE {0} ADD PRIMARY KEY (id) INCLUDE (n)"
DEFERRABLE = "ALTER TABLE {0} ADD PRIMARY KEY (id) DEFERRABLE"

# of a table: statements, and whether it may be published
TABLES: dict[str, tuple[list[str], bool]] = {
    "key": ([KEY], True),
    "key with included columns": ([WIDER], True),
    "full": ([FULL], True),
    "full with key": ([KEY, FULL], True),
    "index": ([INDEX], True),
    "index beside a key": ([KEY, INDEX], True),
    "nothing": ([KEY, NOTHING], False),
    "no key": ([], False),
    "deferrable key": ([DEFERRABLE], False),
}
# of a partitioned table: statements for the root, then for its two leaves, and whether it may be published
PARTITIONED: dict[str, tuple[list[str], list[str], bool]] = {
    "key": ([KEY], [], True),
    "key with included columns": ([WIDER], [], True),
    "key, leaves full": ([KEY], [FULL], True),
    "key, leaves by a wider index": ([KEY], [INDEX], True),
    "key, leaves nothing": ([KEY], [NOTHING], False),
    "full": ([FULL], [FULL], True),
    "full with key": ([KEY, FULL], [FULL], True),
    "full with key, leaves default": ([KEY, FULL], [], False),
    "full, leaves by index": ([FULL], [INDEX], False),
    "full, leaves with keys": ([FULL], [KEY], False),
    "index on both": ([INDEX], [INDEX], True),
    "index, leaves full": ([INDEX], [FULL], True),
    "index with key, leaves default": ([KEY, INDEX], [], False),
    "nothing": ([KEY, NOTHING], [], False),
    "no key": ([], [], False),
    "no key, leaves with keys": ([], [KEY], False),
    "no key, leaves full": ([], [FULL], False),
    "no key, leaves by index": ([], [INDEX], False),
    "deferrable key": ([DEFERRABLE], [], False),
    "deferrable key, leaves full": ([DEFERRABLE], [FULL], False),
}
OWNED = "key, the first leaf by an index on other columns"


def make_tables(connection: Connection) -> dict[str, bool]:
    """By table, whether it may be published."""
    expected = {}
    statements: list[str] = []
    for number, (own, good) in enumerate(TABLES.values()):
        expected[name := f"t{number}"] = good
        statements.append(f"CREATE TABLE {name} ({COLUMNS})")
        statements += [statement.format(name) for statement in own]
    shapes = {**PARTITIONED, OWNED: ([KEY], [], False)}
    for number, (shape, (own, of_leaves, good)) in enumerate(shapes.items()):
        expected[name := f"p{number}"] = good
        statements.append(f"CREATE TABLE {name} ({COLUMNS}) PARTITION BY RANGE (id)")
        for leaf, first in ((f"{name}_a", 0), (f"{name}_b", 100)):
            bounds = f"FOR VALUES FROM ({first}) TO ({first + 100})"
            statements.append(f"CREATE TABLE {leaf} PARTITION OF {name} {bounds}")
        statements += [statement.format(name) for statement in own]
        for leaf in (f"{name}_a", f"{name}_b"):
            statements += [statement.format(leaf) for statement in of_leaves]
        if shape == OWNED:
            statements.append(f"CREATE UNIQUE INDEX odd ON {name}_a (email)")
            statements.append(f"ALTER TABLE {name}_a REPLICA IDENTITY USING INDEX odd")
    for statement in statements:
        connection.execute(statement.encode())
    return expected


def changes_of(connection: Connection, url: str, tables: list[str]) -> dict[str, list[dict[str, Any]]]:
    for table in tables:
        for statement in (
            f"INSERT INTO {table} VALUES (1, 'a', repeat('x', 5000), 1)",
            f"UPDATE {table} SET n = 2",
            f"UPDATE {table} SET id = 5, email = 'b'",
            f"DELETE FROM {table}",
        ):
            connection.execute(statement.encode())
    out: dict[str, list[dict[str, Any]]] = {table: [] for table in tables}
    for line in map(json.loads, written(url, received(connection))):
        out[line["table"]].append(line)
    return out


def check_told(told: list[dict[str, Any]]) -> None:
    """Every word of these lines is true, and the row is never lost sight of."""
    big = "x" * 5000
    rows = [
        {"id": 1, "email": "a", "big": big, "n": 1},
        {"id": 1, "email": "a", "big": big, "n": 2},
        {"id": 5, "email": "b", "big": big, "n": 2},
    ]
    assert [line["op"] for line in told] == ["insert", "update", "update", "delete"]
    for number, line in enumerate(told):
        old, new = (rows[number - 1] if number else {}), (rows[number] if number < 3 else {})
        assert line.get("before", {}).items() <= old.items()
        assert line.get("after", {}).items() <= new.items()
        assert line.get("after", {}).keys() | set(line.get("unchanged", [])) == new.keys()
        assert line.get("key", {}).items() <= (new or old).items()
    named = [name for name in ("id", "email") if name in told[3]["before"]]
    assert named, told[3]
    assert told[3].get("key") or told[3]["before"] == rows[2]
    assert all(told[2]["before"][name] == rows[1][name] for name in named)


def check_identities(connection: Connection, url: str) -> None:
    expected = make_tables(connection)

    def judged() -> dict[str, catalog.Table]:
        with open_connection(url, "test") as source:
            return {table.name: table for table in catalog.tables(source) if table.name in expected}

    first = judged()
    assert {name: table.unusable is None for name, table in first.items()} == expected
    for name, good in expected.items():
        if not good:
            remedy = first[name].remedy
            assert remedy is not None
            connection.execute(remedy.encode())
    assert {name: table.unusable for name, table in judged().items()} == dict.fromkeys(expected)
    for name in expected:
        connection.execute(f"ALTER TABLE {name} ALTER big SET STORAGE EXTERNAL".encode())
    subscribe(connection)
    connection.execute(b"ALTER PUBLICATION p SET (publish_via_partition_root = true)")
    for name, found in changes_of(connection, url, list(expected)).items():
        try:
            check_told(found)
        except AssertionError as error:
            raise AssertionError(f"{name}: {first[name]}") from error


def test_only_where_a_delete_tells_the_key_of_an_insert_a_row_can_be_parked_by_it(pg: Database) -> None:
    with pg.connect() as connection:
        for name, statements in {
            "keyed": [KEY],
            "whole": [KEY, FULL],
            "beside": [KEY, BESIDE],
            "within": [KEY, INDEX],
            "keyless": [FULL],
        }.items():
            connection.execute(f"CREATE TABLE {name} ({COLUMNS})".encode())
            for statement in statements:
                connection.execute(statement.format(name).encode())
        names = ("keyed", "whole", "beside", "within", "keyless")
        subscribe(connection)
        for name in names:
            connection.execute(f"INSERT INTO {name} VALUES (1, 'a', NULL, 1)".encode())
            connection.execute(f"DELETE FROM {name}".encode())
        chunk = chunk_of(pg.url, received(connection))
    tells = {relation.name: relation.tells_key for _, relation in chunk.header.changed}
    keys: dict[str, list[Any]] = {name: [] for name in names}
    for window in decode(chunk, Lsn(0)):
        for line in map(json.loads, bytes(lines(window).data).splitlines()):
            keys[line["table"]].append(line.get("key"))
    assert tells == {name: first is not None and first == last for name, (first, last) in keys.items()}
    assert tells == {"keyed": True, "whole": True, "beside": False, "within": True, "keyless": False}


def test_what_is_said_of_old_rows_is_true_for_every_identity_that_may_be_published(pg: Database) -> None:
    with pg.connect() as connection:
        check_identities(connection, pg.url)


@pytest.mark.long
@pytest.mark.parametrize("version", [13, 14, 15, 16, 17])
def test_what_is_said_of_old_rows_is_true_on_every_version(make_server: MakeServer, version: int) -> None:
    server = make_server(version)
    with server.connect() as connection:
        check_identities(connection, server.url())
