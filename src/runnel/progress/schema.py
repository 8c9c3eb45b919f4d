"""Runnel's own tables in schema `runnel`: made, brought up to this version, removed.

What must hold: a step of `MIGRATIONS` never changes once released; each runs once, inside one
transaction with its version number; several subscriptions share the tables, so the schema goes
only with the last of them. Nothing here is ever part of a publication.
"""

from __future__ import annotations

from typing import LiteralString

import psycopg
import psycopg.sql
from psycopg.rows import TupleRow

from ..errors import Refused, RunnelError

SCHEMA = "runnel"
_INSTALL_LOCK = 0x52554E4E454C  # "RUNNEL"; one key for all: installing is rare and short

MIGRATIONS: tuple[LiteralString, ...] = (
    """
    CREATE TABLE runnel.subscription (
        name text PRIMARY KEY,
        id uuid NOT NULL,
        slot text NOT NULL,
        publication text NOT NULL,
        system_id text NOT NULL,
        timeline int NOT NULL,
        former jsonb NOT NULL DEFAULT '[]',
        consistent_lsn pg_lsn,
        quiet_from pg_lsn,
        quiet_to pg_lsn,
        created_at timestamptz NOT NULL DEFAULT now(),
        epoch bigint NOT NULL DEFAULT 0,
        retired_epoch bigint NOT NULL DEFAULT 0,
        state text NOT NULL DEFAULT 'stopped',
        error text,
        detail jsonb,
        state_at timestamptz NOT NULL DEFAULT now()
    ) WITH (fillfactor = 50);
    COMMENT ON COLUMN runnel.subscription.consistent_lsn IS
        'where the slot began; null: the subscription is being made';
    COMMENT ON COLUMN runnel.subscription.quiet_to IS
        'nothing happened from quiet_from up to here, though the slot was told so without a position';
    COMMENT ON COLUMN runnel.subscription.retired_epoch IS
        'the highest epoch of a removed pipeline: its target remembers it, so a new one begins above';
    COMMENT ON COLUMN runnel.subscription.former IS
        'lineages of before a failover or an upgrade: a position under one of them is still ours';

    CREATE TABLE runnel.progress (
        subscription text NOT NULL REFERENCES runnel.subscription ON DELETE CASCADE,
        pipeline text NOT NULL,
        version int NOT NULL DEFAULT 1,
        system_id text NOT NULL,
        timeline int NOT NULL,
        slot text NOT NULL,
        epoch bigint NOT NULL DEFAULT 0,
        lsn pg_lsn NOT NULL,
        fresh boolean NOT NULL DEFAULT true,
        tables jsonb NOT NULL DEFAULT '{}',
        changes bigint NOT NULL DEFAULT 0,
        last_changes bigint NOT NULL DEFAULT 0,
        last_seconds float8 NOT NULL DEFAULT 0,
        paused boolean NOT NULL DEFAULT false,
        state text NOT NULL DEFAULT 'stopped',
        error text,
        detail jsonb,
        created_at timestamptz NOT NULL DEFAULT now(),
        updated_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (subscription, pipeline)
    ) WITH (fillfactor = 30);
    COMMENT ON TABLE runnel.progress IS
        'how far each pipeline is durable: everything committed before lsn';
    COMMENT ON COLUMN runnel.progress.fresh IS
        'registered, but its target was not opened since: what the target says may be of an earlier life';

    CREATE TABLE runnel.dead_letters (
        subscription text NOT NULL REFERENCES runnel.subscription ON DELETE CASCADE,
        pipeline text NOT NULL,
        lsn pg_lsn NOT NULL,
        seq bigint NOT NULL,
        "table" text NOT NULL,
        key text,
        old_key text,
        change text NOT NULL,
        reason text NOT NULL,
        stored_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (subscription, pipeline, lsn, seq)
    );
    COMMENT ON TABLE runnel.dead_letters IS
        'changes that a sink could not take, stored before they were passed';
    COMMENT ON COLUMN runnel.dead_letters.old_key IS 'the key that this change moves its row away from';

    CREATE TABLE runnel.parked (
        subscription text NOT NULL REFERENCES runnel.subscription ON DELETE CASCADE,
        pipeline text NOT NULL,
        "table" text NOT NULL,
        digest bytea NOT NULL,
        key text,
        parked_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (subscription, pipeline, "table", digest)
    );
    COMMENT ON COLUMN runnel.parked.key IS 'null: the table has no key, all of it is parked';
    COMMENT ON COLUMN runnel.parked.digest IS 'of the key: a key may be longer than an index entry';
    """,
    """
    ALTER TABLE runnel.progress ADD hold_lsn pg_lsn;
    COMMENT ON COLUMN runnel.progress.hold_lsn IS
        'the pipeline delivers again from here on, below its lsn: the log is not trimmed past it';
    """,
    """
    ALTER TABLE runnel.subscription
        ADD publication_oid bigint,
        ADD members jsonb NOT NULL DEFAULT '{}';
    COMMENT ON COLUMN runnel.subscription.publication_oid IS
        'a publication made anew has another one; null: not noted yet';
    COMMENT ON COLUMN runnel.subscription.members IS
        'for the oid of each table whose changes are captured the oid of its row in pg_publication_rel';
    """,
    """
    ALTER TABLE runnel.subscription ADD tables jsonb;
    COMMENT ON COLUMN runnel.subscription.tables IS
        'the patterns that the publication was last made to follow by init; null: not noted yet';
    """,
)


def version(connection: psycopg.Connection[TupleRow]) -> int | None:
    """Of the installed tables; None if there are none."""
    row = connection.execute("SELECT to_regclass('runnel.meta') IS NOT NULL").fetchone()
    if row is None or not row[0]:
        return None
    row = connection.execute("SELECT version FROM runnel.meta").fetchone()
    return int(row[0]) if row else 0


def install(connection: psycopg.Connection[TupleRow]) -> None:
    """Make the tables, or bring them up to this version. May be repeated, also by two at once."""
    if version(connection) == len(MIGRATIONS):
        return
    # taken before the transaction begins: only then does it see what the one before us has made
    connection.execute("SELECT pg_advisory_lock(%s)", [_INSTALL_LOCK])
    try:
        with connection.transaction():
            installed = version(connection)
            if installed is None:
                _begin(connection)
                installed = 0
            check_version(installed)
            for number, step in enumerate(MIGRATIONS[installed:], installed + 1):
                connection.execute(step)
                connection.execute("UPDATE runnel.meta SET version = %s, changed_at = now()", [number])
    except psycopg.errors.InsufficientPrivilege as error:
        raise RunnelError(
            f"cannot make Runnel's tables in schema {SCHEMA}: {error.diag.message_primary}",
            hint=f"GRANT CREATE ON DATABASE {connection.info.dbname} TO {connection.info.user}; "
            "or keep the state elsewhere with state.url",
        ) from error
    except psycopg.errors.ReadOnlySqlTransaction as error:
        raise RunnelError(
            f"cannot make Runnel's tables in schema {SCHEMA}: the database is read-only",
            hint="use the primary server, or keep the state elsewhere with state.url",
        ) from error
    finally:
        if not connection.closed:
            connection.execute("SELECT pg_advisory_unlock(%s)", [_INSTALL_LOCK])


def check_version(installed: int | None) -> None:
    if installed is not None and installed > len(MIGRATIONS):
        raise Refused(
            f"schema {SCHEMA} has version {installed}; this Runnel knows up to {len(MIGRATIONS)}",
            hint="use the Runnel version that made it, or a later one",
        )


def uninstall(connection: psycopg.Connection[TupleRow]) -> None:
    """Drop the schema with Runnel's tables, and only those: what somebody else put there stays."""
    for table in ("parked", "dead_letters", "progress", "subscription", "meta"):
        connection.execute(
            psycopg.sql.SQL("DROP TABLE IF EXISTS runnel.{}").format(psycopg.sql.Identifier(table))
        )
    row = connection.execute(
        "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = 'runnel') AND NOT EXISTS ("
        " SELECT FROM pg_depend d JOIN pg_namespace n ON n.oid = d.refobjid AND n.nspname = 'runnel'"
        " WHERE d.refclassid = 'pg_namespace'::regclass)"
    ).fetchone()
    if row is not None and row[0]:
        connection.execute("DROP SCHEMA runnel")


def _begin(connection: psycopg.Connection[TupleRow]) -> None:
    connection.execute("CREATE SCHEMA IF NOT EXISTS runnel")
    connection.execute(
        "CREATE TABLE runnel.meta (single boolean PRIMARY KEY DEFAULT true CHECK (single),"
        " version int NOT NULL, changed_at timestamptz NOT NULL DEFAULT now())"
    )
    connection.execute("INSERT INTO runnel.meta (version) VALUES (0)")
