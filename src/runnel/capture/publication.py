"""The publication as the server has it, and whether it still is what the subscription was made with.

A dropped publication is no error to PostgreSQL 18: pgoutput leaves its changes out and its keepalives go
on, as if nothing happened. An altered one, or one whose table got a row filter or a column list, leaves
out whatever it does not publish any more, on every version; schemas added to it let tables in that
nobody wants captured. Nothing in the stream tells any of them from a quiet source.

What must hold: capture looks here after receiving and before it records that nothing happened, or
confirms anything to the slot.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from ..errors import Refused, RunnelError
from ..postgres.connect import Connection
from ..postgres.lsn import Lsn
from ..progress.records import Subscription

_COMMENT = re.compile(r"runnel subscription ([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
OBJECTIONS = (
    psycopg.OperationalError,
    psycopg.ProgrammingError,
    psycopg.NotSupportedError,
    psycopg.InternalError,
)
"""What the server may raise because of one table; `objection` says which it was."""
LOCK_TIMEOUT = "5s"
"""How long a table that somebody else has locked is waited for."""
_PUBLISHES = ("insert", "update", "delete", "truncate")


@dataclass(frozen=True, slots=True)
class Narrowed:
    """A member that is not published whole."""

    oid: int
    sql: str
    rows: bool
    """By a row filter."""
    columns: bool
    """By a column list."""

    def __str__(self) -> str:
        what = [word for word, there in (("rows", self.rows), ("columns", self.columns)) if there]
        return f"leaves out {' and '.join(what)} of {self.sql}"


@dataclass(frozen=True, slots=True)
class PublicationFacts:
    id: uuid.UUID | None
    """Of the subscription it was made for, by its comment; None: it is not Runnel's."""
    oid: int | None = None
    """A publication made anew has another one, whatever its comment says."""
    lacks: tuple[str, ...] = ()
    """Operations that it does not publish."""
    via_root: bool = True
    generated: bool = True
    """It publishes stored generated columns, where the server can (18)."""
    all_tables: bool = False
    schemas: tuple[str, ...] = ()
    """As SQL: all their tables are in it, wanted or not."""
    narrowed: tuple[Narrowed, ...] = ()

    @property
    def altered(self) -> bool:
        return bool(self.deviations())

    def deviations(self) -> list[str]:
        """What it does that Runnel's own does not; each goes on after its name."""
        out = [f"does not publish {', '.join(self.lacks)} any more"] if self.lacks else []
        if not self.via_root:
            out.append("publishes partitions under their own names")
        if not self.generated:
            out.append("leaves out stored generated columns")
        if self.all_tables:
            out.append("publishes all tables")
        out += [f"publishes all tables of schema {schema}" for schema in self.schemas]
        return out + [str(member) for member in self.narrowed]


def comment(subscription: Subscription) -> str:
    return f"runnel subscription {subscription.id}"


def options(version: int) -> list[sql.SQL]:
    """As `CREATE PUBLICATION … WITH` takes them."""
    out = [
        sql.SQL("publish = 'insert, update, delete, truncate'"),
        sql.SQL("publish_via_partition_root = true"),
    ]
    if version >= 180_000:
        # without it an update under REPLICA IDENTITY FULL is refused where such a column exists
        out.append(sql.SQL("publish_generated_columns = stored"))
    return out


_NARROWED = """
    SELECT coalesce(jsonb_agg(jsonb_build_array(
        c.oid::int8, quote_ident(n.nspname) || '.' || quote_ident(c.relname),
        r.prqual IS NOT NULL, r.prattrs IS NOT NULL) ORDER BY n.nspname, c.relname), '[]')
    FROM pg_publication_rel r JOIN pg_class c ON c.oid = r.prrelid
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE r.prpubid = p.oid AND (r.prqual IS NOT NULL OR r.prattrs IS NOT NULL)"""
_SCHEMAS = """
    SELECT coalesce(jsonb_agg(quote_ident(n.nspname) ORDER BY n.nspname), '[]')
    FROM pg_publication_namespace s JOIN pg_namespace n ON n.oid = s.pnnspid WHERE s.pnpubid = p.oid"""


def read_publication(connection: Connection, name: str) -> PublicationFacts | None:
    # the catalogue gains columns from version to version: as JSON an absent one is simply absent
    # and all of it in one statement: under one snapshot
    narrowed, schemas = (
        (_NARROWED, _SCHEMAS) if connection.info.server_version >= 150_000 else ("'[]'", "'[]'")
    )
    query = sql.SQL(
        "SELECT oid::int8, obj_description(oid, 'pg_publication'), to_jsonb(p), ({})::jsonb, ({})::jsonb"
        " FROM pg_publication p WHERE pubname = %s"
    ).format(sql.SQL(narrowed), sql.SQL(schemas))
    row: Any = connection.execute(query, [name]).fetchone()
    if row is None:
        return None
    oid, text, has, members, whole = row
    found = _COMMENT.search(text or "")
    return PublicationFacts(
        uuid.UUID(found[1]) if found else None,
        oid,
        lacks=tuple(what for what in _PUBLISHES if not has[f"pub{what}"]),
        via_root=has["pubviaroot"],
        generated=has.get("pubgencols", "s") == "s",
        all_tables=has["puballtables"],
        schemas=tuple(whole),
        narrowed=tuple(Narrowed(*member) for member in members),
    )


def check_publication(
    subscription: Subscription, found: PublicationFacts | None, since: Lsn, *, may_be_altered: bool = False
) -> PublicationFacts:
    """`since`: up to here nothing can be missing."""
    name = subscription.publication
    afresh = "start afresh: runnel destroy && runnel init, then import again"
    gone = f"changes after {since} may be missing"
    if found is None:
        raise Refused(f"publication {name!r} does not exist any more: {gone}", hint=afresh)
    known = subscription.publication_oid
    if found.id != subscription.id or (known is not None and found.oid != known):
        raise Refused(f"publication {name!r} was made anew by somebody else: {gone}", hint=afresh)
    if found.altered and not may_be_altered:
        raise Refused(
            f"publication {name!r} was altered by somebody else and"
            f" {' and '.join(found.deviations())}: {gone}",
            hint="runnel init sets it right and goes on without what is missing; for whole targets "
            + afresh,
        )
    return found


def mend_publication(connection: Connection, name: str, found: PublicationFacts) -> list[str]:
    """Make it publish what Runnel's own does, in one transaction. Gives what it did instead till now.

    A member that was narrowed gets a new membership row: what an open transaction wrote before is still
    judged by the old one, so the caller waits for those.
    """
    publication = sql.Identifier(name)
    alter = sql.SQL("ALTER PUBLICATION {} ").format(publication)
    if found.all_tables:
        raise Refused(
            f"publication {name!r} publishes all tables, which cannot be altered",
            hint="start afresh: runnel destroy && runnel init, then import again",
        )
    with connection.transaction():
        wanted = sql.SQL(", ").join(options(connection.info.server_version))
        connection.execute(alter + sql.SQL("SET ({})").format(wanted))
        for schema in found.schemas:
            connection.execute(alter + sql.SQL("DROP TABLES IN SCHEMA ") + quoted(schema))
        failed = renew(connection, name, [member.sql for member in found.narrowed], lock_timeout="60s")
        if failed:
            raise RunnelError(
                f"publication {name!r} could not be set right: "
                + "; ".join(f"{table}: {why}" for table, why in failed.items()),
                hint="run `runnel init` again, with a role that owns the tables",
            )
    return found.deviations()


def renew(
    connection: Connection, name: str, tables: list[str], *, lock_timeout: str = LOCK_TIMEOUT
) -> dict[str, str]:
    """Take members out and in again, whole, each in one transaction: no change falls between. Gives those
    that could not be, with the reason; they stay as they are."""
    alter = sql.SQL("ALTER PUBLICATION {} ").format(sql.Identifier(name))
    failed = {}
    for table in tables:
        try:
            with connection.transaction():
                connection.execute("SELECT set_config('lock_timeout', %s, true)", [lock_timeout])
                connection.execute(alter + sql.SQL("DROP TABLE ONLY ") + quoted(table))
                connection.execute(alter + sql.SQL("ADD TABLE ONLY ") + quoted(table))
        except OBJECTIONS as error:
            failed[table] = objection(connection, error)
    return failed


def objection(connection: Connection, error: psycopg.Error) -> str:
    """Why the server did not alter a table's membership. A lost connection is no such reason: raised."""
    if connection.closed:
        raise error
    if isinstance(error, psycopg.errors.LockNotAvailable):
        return "locked by somebody else for too long; tried again later"
    return error.diag.message_primary or str(error)


def quoted(text: str) -> sql.SQL:
    """A name that Postgres itself quoted, or a fixed word."""
    return sql.SQL(text)
