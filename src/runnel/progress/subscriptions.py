"""The rows of `runnel.subscription`: one per subscription, with its slot, publication and lineage."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping

from psycopg.types.json import Jsonb

from ..log.api import Lineage
from ..postgres.connect import Connection
from ..postgres.lsn import Lsn
from .records import Subscription


def read(connection: Connection, name: str) -> Subscription | None:
    row = connection.execute(
        "SELECT name, id, slot, publication, system_id, timeline, consistent_lsn::text, epoch,"
        " former, state, error, detail, quiet_from::text, quiet_to::text,"
        " publication_oid, members, tables"
        " FROM runnel.subscription WHERE name = %s",
        [name],
    ).fetchone()
    if row is None:
        return None
    name, id_, slot, publication, system_id, timeline, lsn, epoch, former, *words = row
    begin, end, oid, members, tables = words[3:]
    return Subscription(
        name,
        id_,
        slot,
        publication,
        Lineage(system_id, timeline, slot),
        Lsn.parse(lsn) if lsn else Lsn(0),
        epoch,
        tuple(Lineage.from_json(value) for value in former),
        words[0],
        words[1],
        words[2],
        (Lsn.parse(begin), Lsn.parse(end)) if begin and end else None,
        oid,
        {int(table): int(row) for table, row in members.items()},
        None if tables is None else frozenset(tables),
    )


def create(
    connection: Connection,
    name: str,
    id_: uuid.UUID,
    slot: str,
    publication: str,
    system_id: str,
    timeline: int,
) -> None:
    """What is noted already stays."""
    connection.execute(
        "INSERT INTO runnel.subscription (name, id, slot, publication, system_id, timeline)"
        " VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
        [name, id_, slot, publication, system_id, timeline],
    )


def complete(connection: Connection, name: str, consistent: Lsn) -> None:
    connection.execute(
        "UPDATE runnel.subscription SET consistent_lsn = %s WHERE name = %s AND consistent_lsn IS NULL",
        [str(consistent), name],
    )


def note_members(
    connection: Connection, name: str, oid: int | None, settled: Mapping[int, int], gone: Iterable[int]
) -> None:
    connection.execute(
        "UPDATE runnel.subscription SET publication_oid = %s, members = (members - %s::text[]) || %s"
        " WHERE name = %s",
        [oid, [str(table) for table in gone], Jsonb({str(t): row for t, row in settled.items()}), name],
    )


def note_tables(connection: Connection, name: str, patterns: Iterable[str]) -> None:
    connection.execute(
        "UPDATE runnel.subscription SET tables = %(tables)s"
        " WHERE name = %(name)s AND tables IS DISTINCT FROM %(tables)s",
        {"tables": Jsonb(sorted(set(patterns))), "name": name},
    )


def record_quiet(connection: Connection, name: str, epoch: int | None, begin: Lsn, end: Lsn) -> None:
    connection.execute(
        "UPDATE runnel.subscription SET quiet_from = %s, quiet_to = %s WHERE name = %s AND epoch = %s",
        [str(begin), str(end), name, epoch],
    )


def change_lineage(connection: Connection, name: str, lineage: Lineage, base: Lsn | None) -> None:
    connection.execute(
        "UPDATE runnel.subscription SET former = former || jsonb_build_object("
        " 'system_id', system_id, 'timeline', timeline, 'slot', slot),"
        " system_id = %(system_id)s, timeline = %(timeline)s,"
        " consistent_lsn = coalesce(%(base)s::pg_lsn, consistent_lsn)"
        " WHERE name = %(name)s AND (system_id, timeline) <> (%(system_id)s, %(timeline)s)",
        {
            "name": name,
            "system_id": lineage.system_id,
            "timeline": lineage.timeline,
            "base": None if base is None else str(base),
        },
    )
