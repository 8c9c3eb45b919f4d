"""Is the source ready? Every finding says what, and the SQL that mends it. Changes nothing.

`block`: `init` or `run` would fail. `warn`: it works, and something will surprise you. `ok`: checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import psycopg

from ..errors import counted
from ..redaction import without
from . import catalog
from .catalog import Server, Table
from .connect import Connection, parse_url


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    BLOCK = "block"


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    subject: str
    """A setting, a privilege or a table."""
    message: str
    sql: str | None = None
    """What mends it."""
    identity: str | None = None
    """Of a table: its replica identity. Each table that is taken has one finding that tells it."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What the configuration asks of the server."""

    name: str
    slot: str | None
    """Of an existing subscription: it needs no further slot."""
    failover: bool = False
    state_here: bool = True
    """Runnel's own tables are in the source too."""
    messages: bool = False
    """Logical messages are to be delivered."""


def server_findings(connection: Connection, needs: Needs) -> Iterator[Finding]:
    server = catalog.server(connection)
    settings = _settings(connection)
    yield from _version(server)
    yield from _wal_level(settings)
    yield from _slots(connection, settings, needs)
    yield from _senders(connection, settings, needs)
    yield from _privileges(connection, needs)
    yield from _limits(settings)
    yield from _failover(connection, server, settings, needs)
    yield from _messages(server, needs)


def replication_finding(url: str) -> Finding:
    """pg_hba.conf and poolers treat replication connections by rules of their own: try one."""
    subject = "replication connection"
    try:
        parameters = {**parse_url(url), "replication": "database"}
        parameters.setdefault("connect_timeout", 10)
        with psycopg.connect(**parameters, autocommit=True) as connection:
            connection.execute("IDENTIFY_SYSTEM")
    except psycopg.Error as error:
        text = " ".join(str(error).split())
        text = without(text, str(parse_url(url).get("password") or ""))
        return Finding(
            Level.BLOCK,
            subject,
            f"refused: {text}",
            "-- a line in pg_hba.conf for this user and database, and a direct connection (no pooler)",
        )
    return Finding(Level.OK, subject, "accepted")


def table_findings(chosen: Sequence[tuple[Table, bool]], missing: Sequence[str]) -> Iterator[Finding]:
    """`chosen`: what the patterns take, and whether by its literal name; `missing`: names of nothing."""
    good = sum(1 for table, _ in chosen if not table.unusable)
    for name in missing:
        yield Finding(Level.BLOCK, name, "named in source.tables, and does not exist")
    for table, literal in chosen:
        if table.unusable:
            level = Level.BLOCK if literal else Level.WARN
            tail = "" if literal else "; it stays unpublished"
            yield Finding(level, table.label, table.unusable + tail, table.remedy, table.identity)
        else:
            yield Finding(Level.OK, table.label, _identity(table), identity=table.identity)
        if table.leaves and not table.unusable:
            foreign = [leaf.label for leaf in table.leaves if leaf.kind == "f"]
            if foreign:
                yield Finding(
                    Level.WARN,
                    table.label,
                    f"changes of its foreign partitions are not captured: {', '.join(foreign)}",
                )
            yield Finding(
                Level.WARN,
                table.label,
                f"published as a whole: TRUNCATE, ATTACH and DETACH of one of its"
                f" {counted(len(table.leaves), 'partition')} are not seen",
                f"-- use DELETE on the partition, or TRUNCATE {table.sql}",
            )
    if good:
        yield Finding(Level.OK, "tables", f"{good} can be published")
    else:
        yield Finding(Level.WARN, "tables", "source.tables takes no table that can be published")


def _identity(table: Table) -> str:
    """The same words for all tables of a kind, so that they can be told in one line."""
    if table.identity == "full" and not table.key:
        return "replica identity full without a primary key: changes have no key"
    return f"replica identity {table.identity}"


def _settings(connection: Connection) -> dict[str, Any]:
    rows = connection.execute(
        "SELECT name, setting FROM pg_settings WHERE name IN ('wal_level', 'max_replication_slots',"
        " 'max_wal_senders', 'max_slot_wal_keep_size', 'idle_replication_slot_timeout',"
        " 'wal_sender_timeout', 'server_encoding', 'sync_replication_slots', 'synchronized_standby_slots')"
    )
    return dict(rows.fetchall())


def _version(server: Server) -> Iterator[Finding]:
    if server.major < 13:
        yield Finding(Level.BLOCK, "server", f"PostgreSQL {server.label}; 13 to 18 are supported")
    elif server.in_recovery:
        yield Finding(Level.BLOCK, "server", "a standby: publications are made on the primary")
    else:
        yield Finding(Level.OK, "server", f"PostgreSQL {server.label}, database {server.database}")


def _wal_level(settings: dict[str, Any]) -> Iterator[Finding]:
    level = settings["wal_level"]
    if level == "logical":
        yield Finding(Level.OK, "wal_level", level)
    else:
        yield Finding(
            Level.BLOCK,
            "wal_level",
            f"{level}: the WAL lacks what changes are made of; needs a restart of the server",
            "ALTER SYSTEM SET wal_level = 'logical'",
        )


def _slots(connection: Connection, settings: dict[str, Any], needs: Needs) -> Iterator[Finding]:
    used = _count(connection, "SELECT count(*) FROM pg_replication_slots")
    most = int(settings["max_replication_slots"])
    here = needs.slot is not None and _count(
        connection, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", needs.slot
    )
    text = f"{used} of {most} used"
    if here or used < most:
        yield Finding(Level.OK, "max_replication_slots", text)
    else:
        sql = f"ALTER SYSTEM SET max_replication_slots = {most + 5}"
        yield Finding(Level.BLOCK, "max_replication_slots", f"{text}; needs a restart of the server", sql)


def _senders(connection: Connection, settings: dict[str, Any], needs: Needs) -> Iterator[Finding]:
    used = _count(connection, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender'")
    most = int(settings["max_wal_senders"])
    active = needs.slot is not None and _count(
        connection, "SELECT count(*) FROM pg_replication_slots WHERE active AND slot_name = %s", needs.slot
    )
    text = f"{used} of {most} used"
    if active or used < most:
        yield Finding(Level.OK, "max_wal_senders", text)
    else:
        sql = f"ALTER SYSTEM SET max_wal_senders = {most + 5}"
        yield Finding(Level.BLOCK, "max_wal_senders", f"{text}; needs a restart of the server", sql)


def _privileges(connection: Connection, needs: Needs) -> Iterator[Finding]:
    row = connection.execute(
        "SELECT quote_ident(current_user), r.rolsuper OR r.rolreplication OR EXISTS ("
        # managed services grant replication through a role of theirs
        "  SELECT FROM pg_roles m WHERE m.rolname IN"
        "   ('rds_replication', 'azure_pg_admin', 'cloudsqlsuperuser') AND pg_has_role(m.oid, 'MEMBER')),"
        " has_database_privilege(current_database(), 'CREATE'), quote_ident(current_database()),"
        " EXISTS (SELECT FROM pg_publication WHERE pubname = %s),"
        " EXISTS (SELECT FROM pg_namespace WHERE nspname = 'runnel') FROM pg_roles r"
        " WHERE r.rolname = current_user",
        [needs.name],
    ).fetchone()
    assert row is not None  # noqa: S101 - the current user is a role
    user, replication, create, database, published, installed = row
    if replication:
        yield Finding(Level.OK, "replication", f"{user} may replicate")
    else:
        yield Finding(
            Level.BLOCK,
            "replication",
            f"{user} may not make or read a slot",
            f"ALTER ROLE {user} REPLICATION",
        )
    lacks = [
        what for what, there in (("the publication", published), ("schema runnel", installed)) if not there
    ]
    if not needs.state_here:
        lacks = [what for what in lacks if what != "schema runnel"]
    if create or not lacks:
        yield Finding(Level.OK, "create", f"{user} may make Runnel's objects")
    else:
        yield Finding(
            Level.BLOCK,
            "create",
            f"{user} may not make {' and '.join(lacks)} in {database}",
            f"GRANT CREATE ON DATABASE {database} TO {user}",
        )


def _limits(settings: dict[str, Any]) -> Iterator[Finding]:
    keep = int(settings.get("max_slot_wal_keep_size", -1))
    if keep >= 0:
        yield Finding(
            Level.WARN,
            "max_slot_wal_keep_size",
            f"{keep} MB: a slot that holds back more is given up by the server, and its changes are lost",
            "ALTER SYSTEM SET max_slot_wal_keep_size = -1",
        )
    else:
        yield Finding(
            Level.OK, "max_slot_wal_keep_size", "unlimited; source.max_retained guards the server's disk"
        )
    idle = int(settings.get("idle_replication_slot_timeout", 0))
    if idle > 0:
        yield Finding(
            Level.WARN,
            "idle_replication_slot_timeout",
            f"{idle} s: while Runnel is stopped for longer the server gives up the slot",
            "ALTER SYSTEM SET idle_replication_slot_timeout = 0",
        )
    timeout = int(settings["wal_sender_timeout"])
    if 0 < timeout < 5_000:
        yield Finding(
            Level.WARN,
            "wal_sender_timeout",
            f"{timeout} ms: a short stall of the network breaks the connection",
            "ALTER SYSTEM SET wal_sender_timeout = '60s'",
        )
    if settings["server_encoding"] == "SQL_ASCII":
        yield Finding(
            Level.WARN, "server_encoding", "SQL_ASCII: text that is not UTF-8 cannot be delivered as JSON"
        )


def _failover(
    connection: Connection, server: Server, settings: dict[str, Any], needs: Needs
) -> Iterator[Finding]:
    if not needs.failover:
        return
    if server.major < 17:
        yield Finding(
            Level.WARN, "source.failover", "failover slots exist from PostgreSQL 17 on: without effect"
        )
        return
    if needs.slot is not None and _count(
        connection,
        "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s AND NOT failover",
        needs.slot,
    ):
        yield Finding(
            Level.WARN,
            "source.failover",
            f"not in force: slot {needs.slot} was made without it, and does not follow a failover",
            "-- stop capture, then: runnel init",
        )
    if not settings.get("synchronized_standby_slots"):
        yield Finding(
            Level.WARN,
            "synchronized_standby_slots",
            "empty: changes may be delivered before a standby has them, and a failover is then refused",
            "ALTER SYSTEM SET synchronized_standby_slots = '<the standby''s physical slot>'",
        )


def _messages(server: Server, needs: Needs) -> Iterator[Finding]:
    if needs.messages and server.major < 14:
        yield Finding(
            Level.WARN,
            "source.messages",
            f"PostgreSQL {server.major} does not send what pg_logical_emit_message writes, 14 and later do:"
            " none will be delivered (source.messages: false takes this warning away)",
        )


def _count(connection: Connection, query: str, *values: Any) -> int:
    row = connection.execute(query.encode(), values).fetchone()
    return int(row[0]) if row else 0
