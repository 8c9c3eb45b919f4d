"""Dead letters: changes a sink could not take, and the keys that are parked because of them.

A letter is stored, keyed (pipeline, lsn, seq), before the commit that passes it; storing it again
adds at most the old key. A (table, key) is parked exactly as long as there is a letter that has this key
or moves a row away from it: later changes of it become letters too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString, Protocol

from psycopg import Connection
from psycopg.rows import TupleRow

from ..errors import Kind, RunnelError
from ..postgres.lsn import Lsn

Key = tuple[str, str | None]
"""(table, key as JSON text); without a key: all of the table."""

Passed = tuple[Lsn, int, str | None]
"""(lsn, seq, old key) of a stored letter."""


class Rejected(Protocol):
    """A change that the sink can never take (`sinks.api.Reject` is one)."""

    @property
    def lsn(self) -> Lsn: ...
    @property
    def seq(self) -> int: ...
    @property
    def table(self) -> str: ...
    @property
    def key(self) -> str | None: ...
    @property
    def old_key(self) -> str | None: ...
    @property
    def change(self) -> str: ...
    @property
    def reason(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Letter:
    pipeline: str
    lsn: Lsn
    seq: int
    table: str
    key: str | None
    """As JSON text; None: the table has no key."""
    old_key: str | None
    """The key it moves its row away from."""
    change: str
    """In Runnel's default JSON."""
    reason: str
    stored_at: datetime


def keys(of: Rejected | Letter) -> list[Key]:
    """What has to stay behind this change: its row's key, and the one that the row leaves."""
    return [(of.table, of.key)] + ([(of.table, of.old_key)] if of.old_key is not None else [])


def store(
    connection: Connection[TupleRow],
    subscription: str,
    pipeline: str,
    rejects: Sequence[Rejected],
    most: int | None = None,
) -> None:
    """Store letters and park their keys: all of them, or none if the pipeline then had more than `most`."""
    parked = sorted({key for reject in rejects for key in keys(reject)}, key=str)
    with connection.transaction(), connection.cursor() as cursor:
        # A sink does not tell the old key; when its batch runs again it is known.
        cursor.executemany(
            "INSERT INTO runnel.dead_letters AS l"
            ' (subscription, pipeline, lsn, seq, "table", key, old_key, change, reason)'
            " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT (subscription, pipeline, lsn, seq)"
            " DO UPDATE SET old_key = excluded.old_key"
            " WHERE l.old_key IS NULL AND excluded.old_key IS NOT NULL",
            [
                (subscription, pipeline, str(r.lsn), r.seq, r.table, r.key, r.old_key, r.change, r.reason)
                for r in rejects
            ],
        )
        cursor.executemany(
            'INSERT INTO runnel.parked (subscription, pipeline, "table", digest, key)'
            " VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
            [(subscription, pipeline, table, _digest(key), key) for table, key in parked],
        )
        if most is not None:
            _check_count(connection, subscription, pipeline, most)


def _check_count(connection: Connection[TupleRow], subscription: str, pipeline: str, most: int) -> None:
    count = counts(connection, subscription, pipeline).get(pipeline, 0)
    if count <= most:
        return
    row = connection.execute(
        'SELECT "table", count(*), bool_or(key IS NULL) FROM runnel.dead_letters'
        ' WHERE subscription = %s AND pipeline = %s GROUP BY "table" ORDER BY 2 DESC, 1 LIMIT 1',
        [subscription, pipeline],
    ).fetchone()
    assert row is not None  # noqa: S101 - there are letters
    table, of_table, whole = row
    raise RunnelError(
        f"pipeline {pipeline!r} would have {count} dead letters, more than max_dead_letters ({most}):"
        f" {of_table} of {table or 'messages'}" + (", which is parked as a whole" if whole else ""),
        hint=f"mend the cause and `runnel dead-letters replay {pipeline}`, or `drop` what shall not come;"
        f" or raise pipelines.{pipeline}.max_dead_letters",
        kind=Kind.DATA,
    )


def explain(
    connection: Connection[TupleRow], subscription: str, pipeline: str, rejects: Iterable[Rejected]
) -> None:
    """Letters that were rejected once more have the latest reason."""
    with connection.cursor() as cursor:
        cursor.executemany(
            "UPDATE runnel.dead_letters SET reason = %s"
            " WHERE subscription = %s AND pipeline = %s AND lsn = %s AND seq = %s",
            [(r.reason, subscription, pipeline, str(r.lsn), r.seq) for r in rejects],
        )


def parked(connection: Connection[TupleRow], subscription: str, pipeline: str) -> list[Key]:
    rows = connection.execute(
        'SELECT "table", key FROM runnel.parked WHERE subscription = %s AND pipeline = %s'
        ' ORDER BY "table", key NULLS FIRST',
        [subscription, pipeline],
    )
    return [(table, key) for table, key in rows]


def find(
    connection: Connection[TupleRow],
    subscription: str,
    pipeline: str | None = None,
    *,
    table: str | None = None,
    key: str | None = None,
    by_key: bool = True,
    limit: int | None = None,
) -> list[Letter]:
    # l.lsn: a bare lsn would be the text that is selected, and order as text
    order: LiteralString = '"table", key NULLS FIRST, l.lsn, seq' if by_key else "l.lsn, seq"
    query: LiteralString = (
        'SELECT pipeline, lsn::text, seq, "table", key, old_key, change, reason, stored_at'
        " FROM runnel.dead_letters l"
        " WHERE subscription = %(subscription)s AND (%(pipeline)s::text IS NULL OR pipeline = %(pipeline)s)"
        ' AND (%(table)s::text IS NULL OR "table" = %(table)s) AND (%(key)s::text IS NULL OR key = %(key)s)'
        " ORDER BY pipeline, "
    )
    rows = connection.execute(
        query + order + " LIMIT %(limit)s",
        {"subscription": subscription, "pipeline": pipeline, "table": table, "key": key, "limit": limit},
    )
    return [Letter(p, Lsn.parse(lsn), *rest) for p, lsn, *rest in rows]


def behind(connection: Connection[TupleRow], subscription: str, pipeline: str, lsn: Lsn) -> list[Passed]:
    """Letters of changes that a pipeline at `lsn` has not passed yet."""
    rows = connection.execute(
        "SELECT lsn::text, seq, old_key FROM runnel.dead_letters l"
        " WHERE subscription = %s AND pipeline = %s AND l.lsn >= %s ORDER BY l.lsn, seq",
        [subscription, pipeline, str(lsn)],
    )
    return [(Lsn.parse(at), seq, old_key) for at, seq, old_key in rows]


def counts(
    connection: Connection[TupleRow], subscription: str, pipeline: str | None = None
) -> dict[str, int]:
    rows = connection.execute(
        "SELECT pipeline, count(*) FROM runnel.dead_letters WHERE subscription = %(subscription)s"
        " AND (%(pipeline)s::text IS NULL OR pipeline = %(pipeline)s) GROUP BY pipeline",
        {"subscription": subscription, "pipeline": pipeline},
    )
    return {pipeline: int(count) for pipeline, count in rows}


def drop(
    connection: Connection[TupleRow],
    subscription: str,
    pipeline: str,
    *,
    table: str | None = None,
    key: str | None = None,
    at: Sequence[tuple[Lsn, int]] | None = None,
) -> int:
    """Forget letters: all of the pipeline, of a table, of a key, or those at these (lsn, seq).
    A key that none
       of those left has or moves away from is parked no longer."""
    values: dict[str, Any] = {
        "subscription": subscription,
        "pipeline": pipeline,
        "table": table,
        "key": key,
        "lsns": None if at is None else [str(lsn) for lsn, _ in at],
        "seqs": None if at is None else [seq for _, seq in at],
    }
    with connection.transaction():
        dropped = connection.execute(
            "DELETE FROM runnel.dead_letters"
            " WHERE subscription = %(subscription)s AND pipeline = %(pipeline)s"
            ' AND (%(table)s::text IS NULL OR "table" = %(table)s)'
            " AND (%(key)s::text IS NULL OR key = %(key)s)"
            " AND (%(lsns)s::pg_lsn[] IS NULL OR (lsn, seq) IN"
            "  (SELECT * FROM unnest(%(lsns)s::pg_lsn[], %(seqs)s::bigint[])))",
            values,
        )
        # '' is no key: so it can stand for none, and the join is a plain equality
        connection.execute(
            "WITH letters AS (SELECT * FROM runnel.dead_letters"
            "  WHERE subscription = %(subscription)s AND pipeline = %(pipeline)s)"
            " DELETE FROM runnel.parked p WHERE subscription = %(subscription)s AND pipeline = %(pipeline)s"
            " AND NOT EXISTS (SELECT FROM (SELECT \"table\", coalesce(key, '') AS key FROM letters"
            '   UNION ALL SELECT "table", old_key FROM letters) held'
            '  WHERE held."table" = p."table" AND held.key = coalesce(p.key, \'\'))',
            values,
        )
    return dropped.rowcount


def _digest(key: str | None) -> bytes:
    return b"" if key is None else hashlib.blake2b(key.encode(), digest_size=16).digest()
