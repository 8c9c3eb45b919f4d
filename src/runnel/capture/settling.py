"""When a table that joined counts: from then on none of its changes may be missing.

pgoutput judges membership at the time of each change. What a transaction wrote into a table before it
was published is not in the stream, though it commits later; so a membership row is *settled* once every
transaction that ran when it was first seen has ended, and only then noted in the state. A row that is
not noted is waited for, by whoever comes next: an `init` that was interrupted, or another process that
added the table, leave nothing open. A noted row that is gone or another one means that the table was
out in between: its changes are missing, which is said.

Servers without a fix of August 2025 also let such a transaction poison the walsender: it caches that the
table is not published, and no later change of the table is sent. Its cache is emptied by taking the
table out and in again once those transactions are over: that stands in the WAL behind their commits, so
it works in the order of decoding, for whichever walsender reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from ..postgres.connect import Connection
from ..progress.state import State
from .publication import renew

_CURED = {13: 130_022, 14: 140_019, 15: 150_014, 16: 160_010, 17: 170_006}
"""From these minor releases on (August 2025) a walsender notices a membership change by itself."""


def poisons(server_version: int) -> bool:
    return server_version < _CURED.get(server_version // 10_000, 0)


@dataclass(frozen=True, slots=True)
class Row:
    """A table's row in pg_publication_rel."""

    oid: int
    sql: str
    """The table's name as SQL."""


def read_rows(connection: Connection, publication: str) -> dict[int, Row]:
    """By the table's oid."""
    rows = connection.execute(
        "SELECT r.prrelid::int8, r.oid::int8, quote_ident(n.nspname) || '.' || quote_ident(c.relname)"
        " FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid"
        " JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE p.pubname = %s",
        [publication],
    )
    return {table: Row(oid, sql) for table, oid, sql in rows}


@dataclass(frozen=True, slots=True)
class Difference:
    """Between what the state notes and what the publication has."""

    fresh: dict[int, Row]
    """Not noted: to be settled."""
    returned: dict[int, Row]
    """Those of them that were noted with another row: out in between."""
    gone: frozenset[int]
    """Noted, and not wanted any more (or dropped)."""


def compare(noted: Mapping[int, int], now: Mapping[int, Row], wanted: Iterable[int]) -> Difference:
    """`wanted`: tables that ought to be in; one that is not stays noted until it is in again."""
    fresh = {table: row for table, row in now.items() if noted.get(table) != row.oid}
    returned = {table: row for table, row in fresh.items() if table in noted}
    return Difference(fresh, returned, frozenset(noted) - set(now) - set(wanted))


def were_out(row: Row, publication: str) -> str:
    return (
        f"{row.sql} was taken out of publication {publication} by somebody else and is in again: changes of"
        " it in between, if any, were not captured (compare this table with its copies)"
    )


def not_renewed(table: str, why: str) -> str:
    return (
        f"{table} could not be taken out of the publication and in again, which this server version needs"
        f" to send all of its changes: {why}"
    )


def alone(state: State, wait: float = 60.0) -> AbstractContextManager[None]:
    """One at a time, an `init` or a running capture, decides what is in the publication, settles and notes
    it: else the one takes the other's doings for a stranger's."""
    return state.only_one("init", f"init of {state.name!r}, or a look at its tables,", wait)


def horizon(connection: Connection) -> int:
    """Every transaction that runs now, or may have begun, is below it."""
    return _number(connection, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8")


def oldest_running(connection: Connection) -> int:
    """Every transaction below it has ended."""
    return _number(connection, "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::int8")


def settle(
    connection: Connection, publication: str, rows: Mapping[int, Row]
) -> tuple[dict[int, int], dict[str, str]]:
    """All transactions that ran when these rows were seen have ended. Gives what to note, and for the
    tables that are not settled, though they should be, why."""
    present = read_rows(connection, publication) if rows else {}
    mine = {table: row for table, row in rows.items() if present.get(table) == row}  # else somebody's turn
    if not mine or not poisons(connection.info.server_version):
        return {table: row.oid for table, row in mine.items()}, {}
    failed = renew(connection, publication, [row.sql for row in mine.values()])
    now = read_rows(connection, publication)
    done = {table for table, row in mine.items() if row.sql not in failed and table in now}
    return {table: now[table].oid for table in done}, failed


def _number(connection: Connection, query: str) -> int:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None  # noqa: S101 - one row always
    return int(row[0])
