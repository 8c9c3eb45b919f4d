"""Which tables are in the publication, and why the others are not.

What must hold: a table whose updates Postgres would refuse once published is never added because a
pattern takes it, and stays unpublished with its reason; one that turned so while published stays in
(leaving it out would lose changes in silence) and shows its reason too. Named literally, it is the
user's wish that cannot be granted: an error. Nothing outside the patterns stays in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from psycopg import sql

from ..errors import RunnelError
from ..postgres import catalog
from ..postgres.catalog import Table
from ..postgres.connect import Connection
from ..postgres.patterns import TablePatterns
from .publication import LOCK_TIMEOUT, OBJECTIONS, objection, quoted
from .settling import read_rows

TORN = "it is a partition, and the table above is published as a whole"
"""Why an exclusion cannot be granted."""


@dataclass(frozen=True, slots=True)
class TableState:
    """One wanted table."""

    label: str
    published: bool
    identity: str
    reason: str | None = None
    """Why it is not published, or what is wrong with it though it is."""
    remedy: str | None = None
    literal: bool = False
    failed: bool = False
    """It should have been published now, and could not be."""
    oid: int = 0


@dataclass(slots=True)
class Membership:
    tables: list[TableState] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        return bool(self.added or self.dropped)

    def problems(self) -> list[TableState]:
        return [table for table in self.tables if table.reason]


def wanted(tables: Sequence[Table], patterns: TablePatterns) -> list[tuple[Table, bool]]:
    """(table, named literally) of what the patterns take. Leaves go with their root: with a taken one as a
    part of it, with an excluded one out, unless they are named literally."""
    taken = {t.oid: p for t in tables if (p := patterns.match(t.schema, t.name)) is not None}
    excluded = {t.oid for t in tables if patterns.excluded(t.schema, t.name)}
    out = []
    for table in tables:
        pattern = taken.get(table.oid)
        if pattern is None:
            continue
        if any(oid in taken for oid in table.ancestors):
            continue
        if pattern.literal or not any(oid in excluded for oid in table.ancestors):
            out.append((table, pattern.literal))
    return out


def torn(tables: Sequence[Table], patterns: TablePatterns) -> list[tuple[Table, Table]]:
    """Partitions that are excluded though a table above them, the second, is taken: a root is published as
    a whole, so their changes would be captured all the same."""
    chosen = {table.oid: table for table, _ in wanted(tables, patterns)}
    out = []
    for table in tables:
        above = next((chosen[oid] for oid in table.ancestors if oid in chosen), None)
        if above is not None and patterns.excluded(table.schema, table.name):
            out.append((table, above))
    return out


def torn_remedy(leaf: Table, root: Table) -> str:
    return (
        f"exclude the root, and name the partitions that are wanted one by one: '!{root.sql}',"
        f" '<schema.partition>'; or let source.tables exclude {leaf.label} no more"
    )


def read(connection: Connection, publication: str, patterns: TablePatterns) -> Membership:
    """As it is; changes nothing."""
    members = read_rows(connection, publication)
    found = catalog.tables(connection)
    return _report(wanted(found, patterns), members, torn=torn(found, patterns))


def require_grantable(
    tables: Sequence[Table], patterns: TablePatterns, members: Collection[int] = ()
) -> None:
    """Every table named literally exists and may be published, and nothing excluded would be captured; else
    one error tells all of them. `members`: oids of tables that are captured already: what came over one of
    them since is for the report, no reason to end a capture that runs."""
    problems, remedies = [], []
    for pattern in patterns.literals():
        if not any(pattern.matches(t.schema, t.name) for t in tables):
            problems.append(f"{pattern.text} does not exist")
            remedies.append(f"create it, or take {pattern.text} out of source.tables")
    for table, literal in wanted(tables, patterns):
        if literal and table.unusable and table.oid not in members:
            problems.append(f"{table.label}: {table.unusable}")
            remedies.append(table.remedy or f"take {table.label} out of source.tables")
    for leaf, root in torn(tables, patterns):
        if root.oid in members:
            continue
        problems.append(f"{root.label} without {leaf.label}: {TORN}")
        remedies.append(torn_remedy(leaf, root))
    if problems:
        raise RunnelError("cannot publish " + "; ".join(problems), hint="; ".join(dict.fromkeys(remedies)))


def reconcile(
    connection: Connection, publication: str, patterns: TablePatterns, *, lock_timeout: str = LOCK_TIMEOUT
) -> Membership:
    """Add what is missing, drop what is not wanted any more, say why the rest is out.

    A table that is locked for longer than `lock_timeout` waits for the next time, with that as reason.
    """
    found = catalog.tables(connection)
    members = {oid: row.sql for oid, row in read_rows(connection, publication).items()}
    chosen = wanted(found, patterns)
    by_oid = {table.oid: table for table in found}
    keep = {table.oid for table, _ in chosen}
    add = [table for table, _ in chosen if table.oid not in members and not table.unusable]
    surplus = [
        by_oid[oid].sql if oid in by_oid else name for oid, name in members.items() if oid not in keep
    ]

    failed = _alter(connection, publication, "ADD", [table.sql for table in add], lock_timeout)
    _alter(connection, publication, "DROP", surplus, lock_timeout)
    now = read_rows(connection, publication)
    report = _report(chosen, now, failed, torn=torn(found, patterns))
    report.added = [table.label for table in add if table.oid in now]
    report.dropped = [
        by_oid[oid].label if oid in by_oid else name for oid, name in members.items() if oid not in now
    ]
    return report


def _report(
    chosen: Iterable[tuple[Table, bool]],
    members: Collection[int],
    failed: dict[str, str] | None = None,
    *,
    torn: Iterable[tuple[Table, Table]],
) -> Membership:
    out = Membership()
    leaking = {root.oid: leaf for leaf, root in torn}
    for table, literal in chosen:
        published = table.oid in members
        reason, remedy = table.unusable, table.remedy
        if reason is None and table.oid in leaking:
            leaf = leaking[table.oid]
            reason = f"partition {leaf.label} is excluded, but captured all the same: {TORN}"
            remedy = torn_remedy(leaf, table)
        if not published and reason is None:
            reason = (failed or {}).get(table.sql, "not published yet: runnel init, or wait for capture")
        out.tables.append(
            TableState(
                table.label,
                published,
                table.identity,
                reason,
                remedy,
                literal,
                failed=not published and table.sql in (failed or {}),
                oid=table.oid,
            )
        )
    return out


def _alter(
    connection: Connection, publication: str, verb: str, tables: Sequence[str], lock_timeout: str
) -> dict[str, str]:
    """All at once; if that fails, one by one, so that one bad table does not keep the others out."""
    if not tables:
        return {}
    try:
        _alter_once(connection, publication, verb, tables, lock_timeout)
        return {}
    except OBJECTIONS as error:
        why = objection(connection, error)
    if len(tables) == 1:
        return {tables[0]: why}
    failed = {}
    for table in tables:
        failed.update(_alter(connection, publication, verb, [table], lock_timeout))
    return failed


def _alter_once(
    connection: Connection, publication: str, verb: str, tables: Sequence[str], lock_timeout: str
) -> None:
    # ONLY: an inheritance parent does not bring its children along; patterns say what is wanted
    names = sql.SQL(", ").join(sql.SQL("ONLY {}").format(quoted(name)) for name in tables)
    with connection.transaction():
        connection.execute("SELECT set_config('lock_timeout', %s, true)", [lock_timeout])
        connection.execute(
            sql.SQL("ALTER PUBLICATION {} {} TABLE {}").format(
                sql.Identifier(publication), quoted(verb), names
            )
        )
