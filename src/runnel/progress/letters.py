"""Dead letters: changes a sink could not take, and the keys that are parked because of them.

A letter is stored, keyed (pipeline, lsn, seq), before the commit that passes it; storing it again
changes nothing. From then on its (table, key) is parked: later changes of it become letters too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString, Protocol

from psycopg import Connection
from psycopg.rows import TupleRow

from ..postgres.lsn import Lsn


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
    change: str
    """In Runnel's default JSON."""
    reason: str
    stored_at: datetime


def store(
    connection: Connection[TupleRow], subscription: str, pipeline: str, rejects: Iterable[Rejected]
) -> None:
    rows = [
        (subscription, pipeline, str(r.lsn), r.seq, r.table, r.key, r.change, r.reason) for r in rejects
    ]
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO runnel.dead_letters"
            ' (subscription, pipeline, lsn, seq, "table", key, change, reason)'
            " VALUES (%s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
            rows,
        )


def park(
    connection: Connection[TupleRow],
    subscription: str,
    pipeline: str,
    keys: Iterable[tuple[str, str | None]],
) -> None:
    rows = [(subscription, pipeline, table, _digest(key), key) for table, key in sorted(set(keys), key=str)]
    with connection.cursor() as cursor:
        cursor.executemany(
            'INSERT INTO runnel.parked (subscription, pipeline, "table", digest, key)'
            " VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
            rows,
        )


def parked(
    connection: Connection[TupleRow], subscription: str, pipeline: str
) -> list[tuple[str, str | None]]:
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
        'SELECT pipeline, lsn::text, seq, "table", key, change, reason, stored_at'
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


def counts(connection: Connection[TupleRow], subscription: str) -> dict[str, int]:
    rows = connection.execute(
        "SELECT pipeline, count(*) FROM runnel.dead_letters WHERE subscription = %s GROUP BY pipeline",
        [subscription],
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

    A key none of whose letters is left is parked no longer; nor is any key of a table without letters
    (a key can be parked without a letter of its own: its row got that key by a change that is one).
    """
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
            "WITH gone AS (DELETE FROM runnel.dead_letters"
            "  WHERE subscription = %(subscription)s AND pipeline = %(pipeline)s"
            '  AND (%(table)s::text IS NULL OR "table" = %(table)s)'
            "  AND (%(key)s::text IS NULL OR key = %(key)s)"
            "  AND (%(lsns)s::pg_lsn[] IS NULL OR (lsn, seq) IN"
            "   (SELECT * FROM unnest(%(lsns)s::pg_lsn[], %(seqs)s::bigint[])))"
            ' RETURNING "table", key)'
            ' SELECT "table", key, count(*) FROM gone GROUP BY "table", key',
            values,
        ).fetchall()
        connection.execute(
            "DELETE FROM runnel.parked p WHERE subscription = %(subscription)s AND pipeline = %(pipeline)s"
            " AND (NOT EXISTS (SELECT FROM runnel.dead_letters l WHERE l.subscription = p.subscription"
            '   AND l.pipeline = p.pipeline AND l."table" = p."table")'
            '  OR (p."table", p.digest) IN (SELECT * FROM unnest(%(tables)s::text[], %(digests)s::bytea[]))'
            "  AND NOT EXISTS (SELECT FROM runnel.dead_letters l WHERE l.subscription = p.subscription"
            '   AND l.pipeline = p.pipeline AND l."table" = p."table"'
            "   AND l.key IS NOT DISTINCT FROM p.key))",
            {
                **values,
                "tables": [row[0] for row in dropped],
                "digests": [_digest(row[1]) for row in dropped],
            },
        )
    return sum(int(row[2]) for row in dropped)


def _digest(key: str | None) -> bytes:
    return b"" if key is None else hashlib.blake2b(key.encode(), digest_size=16).digest()
