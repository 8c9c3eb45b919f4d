"""Relation messages of pgoutput made whole with what only the catalogue knows.

What comes in: the Relation and Type messages of a stretch of the stream. What goes out: a `Relation`
each, with the primary key (pgoutput flags every column under REPLICA IDENTITY FULL) and with arrays'
elements and domains' bases.

What must hold: the catalogue speaks of now, a message of then. The message wins wherever it says
something; the catalogue's key is taken only if the table still has that very row shape; and a table or
type that is gone is no error: its changes must still be delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from ..changes.relation import Column, Relation
from ..postgres.types import ColumnType, resolve
from .protocol import RelationMessage, TypeMessage

Connect = Callable[[], "psycopg.Connection[Any]"]

_PRIMARY_KEYS = """
    SELECT c.oid::bigint, coalesce(array_agg(a.attname::text ORDER BY a.attnum)
                                   FILTER (WHERE a.attname IS NOT NULL), '{}')
      FROM pg_catalog.pg_class c
      LEFT JOIN pg_catalog.pg_index i ON i.indrelid = c.oid AND i.indisprimary AND i.indisvalid
      LEFT JOIN pg_catalog.pg_attribute a
        ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1])
     WHERE c.oid = ANY (%s::bigint[]::oid[])
     GROUP BY c.oid"""


class Catalogue:
    """Describes relations over an ordinary connection, made when it is first needed.

    A lost connection raises `psycopg.OperationalError`: capture then connects anew as a whole, since what
    it cannot describe it cannot write down."""

    def __init__(self, connect: Connect, known: Iterable[Relation] = ()) -> None:
        """`known`: what the log already says of tables; it may know one that is gone."""
        self._connect = connect
        self._connection: psycopg.Connection[Any] | None = None
        self._last = {relation.oid: relation for relation in known}
        self._types = {c.type.oid: c.type for r in self._last.values() for c in r.columns}
        self._names: dict[int, str] = {}

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def describe(self, messages: Sequence[RelationMessage], types: Sequence[TypeMessage]) -> list[Relation]:
        if self._connection is None:
            self._connection = self._connect()
        self._names |= {message.oid: message.name for message in types}
        keys = self._primary_keys(self._connection, messages)
        wanted = {column.type_oid for message in messages for column in message.columns}
        found = resolve(self._connection, wanted)
        self._types |= {oid: self._remembered(oid, kind) for oid, kind in found.items()}
        described = []
        for message in messages:
            key, before = keys.get(message.oid), self._last.get(message.oid)
            relation = build(message, self._types, key, before)
            self._last[message.oid] = relation
            described.append(relation)
        return described

    @staticmethod
    def _primary_keys(
        connection: psycopg.Connection[Any], messages: Sequence[RelationMessage]
    ) -> dict[int, tuple[str, ...]]:
        # Under DEFAULT the flagged columns are the primary key of that time: no need to ask.
        oids = sorted({message.oid for message in messages if message.identity != "d"})
        if not oids:
            return {}
        with connection.cursor(row_factory=tuple_row) as cursor:
            rows = cursor.execute(_PRIMARY_KEYS, [oids]).fetchall()
        return {oid: tuple(names) for oid, names in rows}

    def _remembered(self, oid: int, found: ColumnType) -> ColumnType:
        """A type dropped since keeps what was known of it, or the name its Type message gave."""
        if found.name != "unknown":
            return found
        return self._types.get(oid) or replace(found, name=self._names.get(oid, found.name))


def build(
    message: RelationMessage,
    types: Mapping[int, ColumnType],
    primary_key: Sequence[str] | None,
    before: Relation | None = None,
) -> Relation:
    """`primary_key`: by the catalogue; empty where the table has none, None where the table is gone.
    `before`: the version last described, which knows the key of a table that is gone."""
    columns = tuple(Column(c.name, types[c.type_oid], c.typmod, c.identity) for c in message.columns)
    return Relation(
        oid=message.oid,
        schema=message.schema,
        name=message.name,
        identity=message.identity,
        columns=columns,
        key=_key(message, primary_key, before),
    )


def _key(
    message: RelationMessage, primary_key: Sequence[str] | None, before: Relation | None
) -> tuple[int, ...]:
    flagged = tuple(i for i, c in enumerate(message.columns) if c.identity)
    if message.identity == "d":
        return flagged
    if primary_key is not None and not primary_key:  # it never had one, or it was dropped
        return flagged if message.identity == "i" else ()
    place = {c.name: i for i, c in enumerate(message.columns)}
    known = [before.columns[i].name for i in before.key] if before is not None else None
    for names in (primary_key, known):
        if names and all(name in place for name in names):
            return tuple(sorted(place[name] for name in names))
    return flagged if message.identity == "i" else ()
