"""What the source's catalogue says: the server, its tables, and whether each may be published.

What must hold: a table that is `usable` can be added to a publication without making Postgres refuse
any INSERT, UPDATE or DELETE on it, and what is sent of an old row is true. One that is not says why, and
which SQL mends it. A partitioned table stands for its leaves (they are published as their root): what is
known of an old row is what its leaf wrote into the WAL, while the root's identity says how to read it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from psycopg.sql import Identifier

from .connect import Connection
from .lsn import Lsn
from .patterns import label

IDENTITIES = {"d": "default", "n": "nothing", "f": "full", "i": "index"}


@dataclass(frozen=True, slots=True)
class Server:
    version: int
    """As the protocol says it: 180004."""
    label: str
    """For people: 18.4."""
    system_id: str
    timeline: int
    database: str
    in_recovery: bool

    @property
    def major(self) -> int:
        return self.version // 10_000


@dataclass(slots=True)
class Table:
    oid: int
    schema: str
    name: str
    kind: str
    """pg_class.relkind: r, p(artitioned) or f(oreign)."""
    unlogged: bool
    identity: str
    """default, nothing, full or index."""
    key: tuple[str, ...]
    """The primary key's columns."""
    identifying: tuple[str, ...]
    """The columns by which its replica identity, default or index, tells a row; none if it cannot."""
    owned: bool
    """This role may add it to a publication."""
    owner: str
    owner_super: bool
    """Its owner is a superuser: nobody should become a member of that."""
    role: str
    """The role that looks, which is the one that is to publish it."""
    parent: int | None
    """Of a partition."""
    virtual: bool
    """It has a virtual generated column, with which Postgres refuses updates under identity full."""
    sql: str
    """Its name as SQL."""
    unusable: str | None = None
    """Why Postgres would refuse its updates and deletes, or itself, in a publication."""
    remedy: str | None = None
    """SQL that mends it; None where there is none."""
    ancestors: tuple[int, ...] = ()
    """Of a partition: the partitioned tables above it, the nearest first."""
    leaves: list[Table] = field(default_factory=list)

    @property
    def label(self) -> str:
        return label(self.schema, self.name)


_TABLES = """
SELECT c.oid::int8, n.nspname, c.relname, c.relkind::text, c.relpersistence = 'u', c.relreplident::text,
    coalesce((SELECT array_agg(a.attname::text ORDER BY k.n)
        FROM unnest(pk.indkey::int2[]) WITH ORDINALITY k(attnum, n)
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum AND k.n <= pk.indnkeyatts), '{}'),
    coalesce(pk.indimmediate AND pk.indisvalid, false),
    coalesce((SELECT array_agg(a.attname::text ORDER BY k.n)
        FROM pg_index ri, unnest(ri.indkey::int2[]) WITH ORDINALITY k(attnum, n)
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
        WHERE ri.indrelid = c.oid AND ri.indisreplident AND ri.indisvalid AND k.n <= ri.indnkeyatts), '{}'),
    pg_has_role(c.relowner, 'USAGE'), pg_get_userbyid(c.relowner),
    coalesce((SELECT r.rolsuper FROM pg_roles r WHERE r.oid = c.relowner), false), current_user::text,
    (SELECT i.inhparent::int8 FROM pg_inherits i WHERE c.relispartition AND i.inhrelid = c.oid LIMIT 1),
    (SELECT quote_ident(x.relname) FROM pg_index u JOIN pg_class x ON x.oid = u.indexrelid
        WHERE u.indrelid = c.oid AND u.indisunique AND u.indimmediate AND u.indisvalid
        AND u.indpred IS NULL AND u.indexprs IS NULL AND NOT EXISTS (
            SELECT FROM unnest(u.indkey::int2[]) k(attnum) JOIN pg_attribute a
            ON a.attrelid = c.oid AND a.attnum = k.attnum AND NOT a.attnotnull)
        ORDER BY u.indnkeyatts, x.relname LIMIT 1),
    EXISTS (SELECT FROM pg_attribute a
        WHERE a.attrelid = c.oid AND a.attgenerated = 'v' AND NOT a.attisdropped),
    quote_ident(n.nspname) || '.' || quote_ident(c.relname)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_index pk ON pk.indrelid = c.oid AND pk.indisprimary
WHERE c.relkind IN ('r', 'p', 'f') AND c.relpersistence <> 't'
    AND n.nspname !~ '^pg_' AND n.nspname NOT IN ('information_schema', 'runnel')
ORDER BY n.nspname, c.relname
"""


def server(connection: Connection) -> Server:
    row = connection.execute(
        "SELECT system_identifier::text, pg_is_in_recovery(), current_database(),"
        # the checkpoint's timeline lags behind a promotion; the WAL's own name does not
        " CASE WHEN pg_is_in_recovery() THEN (SELECT timeline_id FROM pg_control_checkpoint())"
        "  ELSE ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int END,"
        " current_setting('server_version') FROM pg_control_system()"
    ).fetchone()
    assert row is not None  # noqa: S101 - one row always
    system_id, in_recovery, database, timeline, label = row
    version = connection.info.server_version
    return Server(version, label.split()[0], system_id, timeline, database, in_recovery)


def clock(connection: Connection) -> float:
    """The server's, in seconds since 1970: what commit times are compared with, never our own."""
    row = connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
    assert row is not None  # noqa: S101 - one row always
    return float(row[0])


def current_lsn(connection: Connection) -> Lsn:
    """Where the next record goes: whatever commits later has a commit LSN at or past it."""
    row = connection.execute(
        "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()"
        " ELSE pg_current_wal_insert_lsn() END::text"
    ).fetchone()
    assert row is not None  # noqa: S101 - one row always
    return Lsn.parse(row[0])


def tables(connection: Connection) -> list[Table]:
    """Every table that is not a system's or Runnel's own, by name, partitions included."""
    found: dict[int, Table] = {}
    for row in connection.execute(_TABLES):
        oid, schema, name, kind, unlogged, identity, key, key_good, index = row[:9]
        owned, owner, owner_super, role, parent, candidate, virtual, sql = row[9:]
        identifying = {"d": key if key_good else (), "i": index}.get(identity, ())
        table = Table(
            oid,
            schema,
            name,
            kind,
            unlogged,
            IDENTITIES[identity],
            tuple(key),
            tuple(identifying),
            owned,
            owner,
            owner_super,
            role,
            parent,
            virtual,
            sql,
        )
        table.unusable, table.remedy = _identity_problem(table, key_good, candidate)
        found[oid] = table
    _link_partitions(found.values(), found)
    for table in found.values():
        if table.kind == "p":
            _judge_by_leaves(table)
    for table in found.values():
        _judge_itself(table)
    return list(found.values())


def _identity_problem(table: Table, key_good: bool, candidate: str | None) -> tuple[str | None, str | None]:
    using = f"ALTER TABLE {table.sql} REPLICA IDENTITY " + (
        f"USING INDEX {candidate}" if candidate else "FULL"
    )
    if table.identity == "full":
        if table.virtual:
            return "replica identity full with a virtual generated column: Postgres refuses its updates", (
                using if candidate else None
            )
        return None, None
    if table.identity == "nothing":
        back = f"ALTER TABLE {table.sql} REPLICA IDENTITY DEFAULT"
        return "replica identity is nothing: Postgres would refuse its updates", back if key_good else using
    if table.identity == "index":
        return (None, None) if table.identifying else ("the index of its replica identity is gone", using)
    if key_good:
        return None, None
    if table.key:
        return (
            "its primary key is deferrable, which cannot identify a row: Postgres would refuse updates",
            using,
        )
    return "no primary key: Postgres would refuse its updates", using


def _link_partitions(tables: Iterable[Table], by_oid: dict[int, Table]) -> None:
    for table in tables:
        above = table
        while above.parent is not None and above.parent in by_oid:
            above = by_oid[above.parent]
            table.ancestors += (above.oid,)
            if table.kind != "p":
                above.leaves.append(table)


def _judge_by_leaves(table: Table) -> None:
    # Postgres refuses updates by the identity of the leaf a row is in, and writes of the old row what that
    # identity says; pgoutput describes both by the root's. The two must fit, else what is sent is not true:
    # an ALTER TABLE … REPLICA IDENTITY of the root does not reach its leaves.
    table.unusable = table.remedy = None
    leaves = [leaf for leaf in table.leaves if leaf.kind == "r"]
    bad = [leaf for leaf in leaves if leaf.unusable or not _covers(leaf, table)]
    if table.identity != "full" and not table.identifying:
        _judge_keyless(table, leaves)
    elif not leaves and table.identity != "default":
        # Of the root only a primary key passes to the leaves to come, which have identity default.
        table.unusable = (
            f"partitioned, replica identity is {table.identity}: partitions to come would not be"
        )
        table.remedy = f"ALTER TABLE {table.sql} " + (
            "REPLICA IDENTITY DEFAULT" if table.key else "ADD PRIMARY KEY (…)"
        )
    elif bad:
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        table.unusable = f"partition {bad[0].label}{more}: " + (
            bad[0].unusable
            or f"replica identity is {bad[0].identity}, the table's is {table.identity}: old rows would be"
            " sent with NULLs that they do not have"
        )
        if table.identity == "full" and table.virtual:
            change, identity = [table, *leaves], "DEFAULT" if table.key else None
        else:
            # The root's primary key is every leaf's. What a leaf calls its part of an index, nobody asked.
            change, identity = bad, "DEFAULT" if table.identity == "default" else "FULL"
        table.remedy = _alter_identity(change, identity) if identity else None


def _judge_keyless(table: Table, leaves: list[Table]) -> None:
    what = {
        "nothing": "replica identity is nothing",
        "index": "the index of its replica identity is gone",
        "default": "its primary key is deferrable" if table.key else "no primary key",
    }[table.identity]
    table.unusable = (
        f"partitioned, {what}: keys of updates and deletes in its partitions would not be sent"
        " (it needs a primary key, or replica identity full on itself and on every partition)"
    )
    table.remedy = f"ALTER TABLE {table.sql} ADD PRIMARY KEY (…)"
    if leaves and not table.virtual:
        table.remedy = _alter_identity(
            [table, *(leaf for leaf in leaves if leaf.identity != "full")], "FULL"
        )


def _alter_identity(tables: Iterable[Table], identity: str) -> str:
    return "; ".join(f"ALTER TABLE {table.sql} REPLICA IDENTITY {identity}" for table in tables)


def _covers(leaf: Table, root: Table) -> bool:
    """Whether the WAL of the leaf has of an old row all that is read from it by the root's identity."""
    if leaf.identity == "full":
        return True
    return root.identity != "full" and set(root.identifying) <= set(leaf.identifying)


def _judge_itself(table: Table) -> None:
    if table.kind == "f":
        table.unusable, table.remedy = "a foreign table: its changes are not in this server's WAL", None
    elif table.unlogged:
        table.unusable = "unlogged: its changes are not in the WAL"
        table.remedy = f"ALTER TABLE {table.sql} SET LOGGED"
    elif table.unusable is None and not table.owned:
        table.unusable = f"owned by {table.owner}: this role may not publish it"
        table.remedy = _ownership(table)


def _ownership(table: Table) -> str:
    """Somebody else runs it, so it names the role that lacks it."""
    role, owner = (Identifier(name).as_string() for name in (table.role, table.owner))
    if table.owner_super:
        # a grant of its owner would make the role a superuser
        return f"ALTER TABLE {table.sql} OWNER TO {role}"
    return f"GRANT {owner} TO {role}"
