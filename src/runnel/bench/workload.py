"""The backlogs that are drained, and the rows they are made of.

A workload is SQL that runs inside the server (a procedure that commits every n rows), so that loading
costs little beside draining. Each has the shape of DESIGN's reference row: ten columns, about 170 bytes
of text, NULLs in four columns, quotes, backslashes, newlines and non-ASCII in one note of a hundred.
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
from psycopg import sql

SCHEMA = "bench"

COLUMNS = """id bigint primary key, name text, email text, amount numeric, created timestamptz,
 flag boolean, score float8, city text, note text, k int"""

ROW = r"""i, 'name of customer ' || i, case when i % 7 = 0 then null else 'user' || i || '@example.com' end,
 (i * 1.01)::numeric(14, 2), timestamptz '2026-01-01 00:00:00+00' + i * interval '1.000123 second',
 case when i % 11 = 0 then null else i % 2 = 0 end, case when i % 13 = 0 then null else i * 0.5 + 0.25 end,
 'city ' || (i % 100),
 case when i % 17 = 0 then null when i % 100 = 0 then E'say "hi" \\ back\nline\ttab ' || i
      when i % 1000 = 501 then 'Zürich – ü ' || i
      else 'some note text with a few more words for row number ' || i end, (i % 1000)::int"""


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    title: str
    tables: int
    small: int
    large: int
    """Changes loaded before the small and the large drains; the rate is the slope between the two."""
    per_transaction: int
    mixed: bool = False


INSERTS = Workload("inserts", "inserts, 100 a transaction", 1, 300_000, 1_500_000, 100)
MIXED = Workload(
    "mixed", "inserts, updates and deletes over ten tables", 10, 150_000, 900_000, 100, mixed=True
)
SINGLES = Workload("singles", "inserts, one a transaction", 1, 100_000, 500_000, 1)


def create(connection: psycopg.Connection[object], workload: Workload) -> None:
    connection.execute(sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(SCHEMA)))
    connection.execute(sql.SQL("create schema {}").format(sql.Identifier(SCHEMA)))
    for number in range(workload.tables):
        connection.execute(sql.SQL("create table {} (" + COLUMNS + ")").format(table(number)))
    connection.execute(_procedure(workload))


def table(number: int) -> sql.Identifier:
    return sql.Identifier(SCHEMA, f"t{number}")


def load(connection: psycopg.Connection[object], workload: Workload, first: int, last: int) -> None:
    """Changes first+1 to last, committed every `per_transaction`."""
    connection.execute(sql.SQL("call bench.load({}, {})").format(first, last))


def _procedure(workload: Workload) -> sql.Composed:
    if workload.mixed:
        # Of each transaction: two thirds inserts, a fifth updates of one column, the rest deletes;
        # transactions go round the tables in stretches of ten rows.
        inserts = workload.per_transaction * 2 // 3
        updates = workload.per_transaction // 5
        deletes = workload.per_transaction - inserts - updates
        statements = []
        for number in range(workload.tables):
            statements.append(
                sql.SQL(
                    "insert into {t} select " + ROW + " from generate_series(at + 1, at + {n}) i"
                    " where (i / 10) % {tables} = {k};"
                    "update {t} set note = 'changed ' || id where id > at and id <= at + {u};"
                    "delete from {t} where id > at + {u} and id <= at + {u} + {d};"
                ).format(
                    t=table(number),
                    n=sql.Literal(inserts),
                    tables=sql.Literal(workload.tables),
                    k=sql.Literal(number),
                    u=sql.Literal(updates),
                    d=sql.Literal(deletes),
                )
            )
        body = sql.SQL("").join(statements)
    elif workload.tables == 1:
        body = sql.SQL("insert into {} select " + ROW + " from generate_series(at + 1, at + {}) i;").format(
            table(0), sql.Literal(workload.per_transaction)
        )
    else:
        body = sql.SQL(
            "execute format('insert into {schema}.t%s select "
            + ROW.replace("%", "%%").replace("'", "''")
            + " from generate_series(%s, %s) i', (at / {n}) % {tables}, at + 1, at + {n});"
        ).format(
            schema=sql.Identifier(SCHEMA),
            n=sql.Literal(workload.per_transaction),
            tables=sql.Literal(workload.tables),
        )
    return sql.SQL(
        "create procedure bench.load(first bigint, last bigint) language plpgsql as $body$"
        " declare at bigint := first;"
        " begin while at < last loop {} at := at + {}; commit; end loop; end $body$"
    ).format(body, sql.Literal(workload.per_transaction))
