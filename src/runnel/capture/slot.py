"""The replication slot: what the server says of it, making it, dropping it.

Making one waits for every transaction that runs on the whole server, in any database. While it waits,
`say` is told for which: pid, age, query. What must hold: a slot is complete when it has a confirmed
LSN; one without is still being made by some server process and is waited for, never used.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

import psycopg
from psycopg import sql

from ..errors import RunnelError, Transient
from ..postgres.connect import Connection, connect, parse_url
from ..postgres.lsn import Lsn
from ..redaction import redact
from .settling import horizon, oldest_running
from .start import SlotFacts

Say = Callable[[str], None]

NO_FAILOVER = "source.failover needs PostgreSQL 17 or later: this slot does not follow a failover"

_PATIENCE = 3.0
"""Seconds to wait until a slot is free."""

_FIRST_REPORT = 1.0
_NEXT_REPORT = 10.0


def read_slot(connection: Connection, name: str) -> SlotFacts | None:
    """None: there is none, or it is still being made."""
    # the view gains columns from version to version: as JSON an absent one is simply absent
    row = connection.execute(
        "SELECT to_jsonb(s) FROM pg_replication_slots s WHERE slot_name = %s", [name]
    ).fetchone()
    if row is None or row[0]["confirmed_flush_lsn"] is None:
        return None
    slot = row[0]
    conflict = "it conflicted with recovery" if slot.get("conflicting") else None
    return SlotFacts(
        name=slot["slot_name"],
        confirmed=Lsn.parse(slot["confirmed_flush_lsn"]),
        restart=Lsn.parse(slot["restart_lsn"]) if slot["restart_lsn"] else None,
        wal_status=slot["wal_status"],
        invalidation=slot.get("invalidation_reason") or conflict,
        failover=bool(slot.get("failover")),
        plugin=slot["plugin"],
        database=slot["database"],
        active_pid=slot["active_pid"],
        temporary=slot["temporary"],
        safe_wal_bytes=slot["safe_wal_size"],
    )


def slot_exists(connection: Connection, name: str) -> bool:
    """Complete or still being made."""
    row = connection.execute("SELECT FROM pg_replication_slots WHERE slot_name = %s", [name]).fetchone()
    return row is not None


def create_slot(url: str, watch: Connection, name: str, *, failover: bool, say: Say) -> Lsn:
    """Make the slot, or wait for whoever is making it. Returns its consistent point."""
    while True:
        existing = read_slot(watch, name)
        if existing is not None:
            return existing.confirmed
        maker = _maker(watch, name)
        if maker is None:
            return _create(url, watch, name, failover, say)
        reports = _Reports(watch, say, f"an interrupted init is still making slot {name!r}")
        while _maker(watch, name) == maker:
            reports.waiting(maker)
            time.sleep(0.2)


def make_failover(url: str, name: str) -> str:
    """Let an existing slot follow a failover, which needs PostgreSQL 17 and nobody who reads it. Gives the
    sentence that says what came of it."""
    parameters = {"connect_timeout": 10, **parse_url(url), "replication": "database"}
    try:
        with psycopg.connect(**parameters, autocommit=True) as connection:
            if connection.info.server_version < 170_000:
                return NO_FAILOVER
            # the server waits for whoever reads the slot, without end
            patience = threading.Timer(_PATIENCE, connection.cancel_safe)
            patience.start()
            try:
                connection.execute(
                    sql.SQL("ALTER_REPLICATION_SLOT {} (FAILOVER true)").format(sql.Identifier(name))
                )
            finally:
                patience.cancel()
                patience.join()
    except psycopg.Error as error:
        said = error.diag.message_primary or " ".join(str(error).split())
        if isinstance(error, psycopg.errors.QueryCanceled):
            said = "somebody reads it"
        return (
            f"source.failover is not in force: slot {name} was made without it, and could not be altered"
            f" ({redact(said)}): stop capture, then runnel init"
        )
    return f"slot {name} is a failover slot from now on"


def drop_slot(connection: Connection, name: str, wait: float = 10.0) -> bool:
    """False: there was none. An active one is waited for: a stopped capture needs a moment to let go."""
    deadline = time.monotonic() + wait
    while slot_exists(connection, name):  # looked for first: a role that may not drop one may still look
        try:
            connection.execute("SELECT pg_drop_replication_slot(%s)", [name])
            return True
        except psycopg.errors.UndefinedObject:  # somebody else was faster
            return False
        except psycopg.errors.ObjectInUse as error:
            if time.monotonic() > deadline:
                raise RunnelError(
                    f"slot {name!r} is in use: {error.diag.message_primary}",
                    hint="stop `runnel run` or `runnel capture` of this subscription,"
                    " or whoever else reads the slot",
                ) from error
            time.sleep(0.2)
    return False


def wait_for_running(connection: Connection, say: Say) -> None:
    """Wait until every transaction that runs now has ended.

    pgoutput judges membership at the time of each change: what such a transaction wrote into a table
    before it was published would be missing from it, though it commits after us.
    """
    reports = _Reports(connection, say, "newly published tables are complete once it has ended")
    bound = horizon(connection)
    while oldest_running(connection) < bound:
        reports.waiting(None)
        time.sleep(0.1)


def _maker(connection: Connection, name: str) -> int | None:
    row = connection.execute(
        "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s AND confirmed_flush_lsn IS NULL",
        [name],
    ).fetchone()
    return None if row is None else int(row[0] or 0)


def _create(url: str, watch: Connection, name: str, failover: bool, say: Say) -> Lsn:
    with connect(url, f"runnel init {name}"[:63]) as making:
        # where the server can, it gives up by itself when we are killed while it waits
        with suppress(psycopg.Error):
            making.execute("SET client_connection_check_interval = '2s'")
        outcome: list[Lsn | psycopg.Error] = []

        def work() -> None:
            try:
                arguments = (
                    ", false, false, true" if failover and making.info.server_version >= 170_000 else ""
                )
                row = making.execute(
                    b"SELECT lsn::text FROM pg_create_logical_replication_slot(%s, 'pgoutput'"
                    + arguments.encode()
                    + b")",
                    [name],
                ).fetchone()
                assert row is not None  # noqa: S101 - one row always
                outcome.append(Lsn.parse(row[0]))
            except psycopg.Error as error:
                outcome.append(error)

        thread = threading.Thread(target=work, name="create slot", daemon=True)
        thread.start()
        reports = _Reports(watch, say, f"slot {name!r} begins once it has ended")
        try:
            while thread.is_alive():
                thread.join(0.05)
                if thread.is_alive():
                    reports.waiting(making.info.backend_pid)
        except BaseException:
            making.cancel_safe()
            thread.join(10)
            raise
        result = outcome[0]
        if isinstance(result, psycopg.Error):
            raise _explain(result, name, making) from result
        return result


def _explain(error: psycopg.Error, name: str, connection: Connection) -> RunnelError:
    said = error.diag.message_primary or str(error).strip()
    message = f"cannot make replication slot {name!r}: {said}"
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return RunnelError(message, hint=f'ALTER ROLE "{connection.info.user}" REPLICATION')
    if isinstance(error, psycopg.errors.ConfigurationLimitExceeded):
        return RunnelError(
            message,
            hint="drop an unused slot (SELECT slot_name, active FROM pg_replication_slots), or"
            " ALTER SYSTEM SET max_replication_slots = … and restart the server",
        )
    if isinstance(error, psycopg.errors.ObjectNotInPrerequisiteState):
        return RunnelError(message, hint="ALTER SYSTEM SET wal_level = logical; then restart the server")
    if isinstance(error, psycopg.OperationalError):
        return Transient(message, hint="the next `runnel init` goes on from here")
    return RunnelError(message, hint="runnel check")


class _Reports:
    """Tells for whom we wait: at once when it changes, else now and then."""

    def __init__(self, connection: Connection, say: Say, why: str) -> None:
        self.connection, self.say, self.why = connection, say, why
        self.next = time.monotonic() + _FIRST_REPORT
        self.last: list[int] = []

    def waiting(self, pid: int | None) -> None:
        """`pid` is the server process that waits; None: we wait for everybody's transactions."""
        if time.monotonic() < self.next:
            return
        self.next = time.monotonic() + _NEXT_REPORT
        rows = self.connection.execute(
            "SELECT pid, coalesce(extract(epoch FROM now() - xact_start), 0)::float8,"
            " coalesce(usename, '?'), coalesce(left(regexp_replace(query, '\\s+', ' ', 'g'), 80), '')"
            " FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()"
            " AND (%(pid)s::int IS NULL OR pid = ANY (pg_blocking_pids(%(pid)s)))"
            " ORDER BY xact_start LIMIT 3",
            {"pid": pid},
        ).fetchall()
        for blocker, age, user, query in rows:
            self.say(
                f"waiting for transaction of pid {blocker} ({user}, {age:.0f} s old): {query} — {self.why}"
            )
        prepared = self.connection.execute(
            "SELECT gid, extract(epoch FROM now() - prepared)::float8 FROM pg_prepared_xacts"
            " ORDER BY prepared LIMIT 3"
        ).fetchall()
        for gid, age in prepared:
            self.say(f"waiting for prepared transaction {gid!r} ({age:.0f} s old) — {self.why}")
        if not rows and not prepared:
            self.say(f"waiting for running transactions — {self.why}")
