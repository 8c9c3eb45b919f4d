"""The statements over `runnel.progress` that run all the time: read positions, store one, say a state.

What must hold: storing is one UPDATE of one row by its key, which touches no index (the table keeps
room for it), and counts only under the owner's epoch. A state that is the same is not written.
"""

from __future__ import annotations

from typing import Any

from psycopg.types.json import Jsonb

from ..postgres.connect import Connection
from ..postgres.lsn import Lsn
from .position import VERSION, Position
from .records import PipelineRow


def read(connection: Connection, subscription: str, pipeline: str | None) -> list[PipelineRow]:
    found = connection.execute(
        "SELECT pipeline, version, system_id, timeline, slot, epoch, lsn::text, tables, changes,"
        " state, error, paused, updated_at, detail, last_changes, last_seconds, fresh, hold_lsn::text"
        " FROM runnel.progress"
        " WHERE subscription = %(name)s AND (%(pipeline)s::text IS NULL OR pipeline = %(pipeline)s)"
        " ORDER BY pipeline",
        {"name": subscription, "pipeline": pipeline},
    ).fetchall()
    rows = []
    for name, version, system_id, timeline, slot, epoch, lsn, tables, *rest, hold in found:
        lineage = {"system_id": system_id, "timeline": timeline, "slot": slot}
        record = {"version": version, "lineage": lineage, "epoch": epoch, "lsn": lsn, "tables": tables}
        rest.append(Lsn.parse(hold) if hold else None)
        rows.append(PipelineRow(name, Position.from_json(record), *rest))
    return rows


JOINING = "joining"
"""State of a row that may be seen but whose position is not settled: nobody may claim it yet."""


def register(
    connection: Connection, subscription: str, pipeline: str, lsn: Lsn, state: str = "stopped"
) -> bool:
    """Its epochs go on above those of every pipeline removed so far: one of them may have had its target.
    False: it is known."""
    done = connection.execute(
        "INSERT INTO runnel.progress"
        " (subscription, pipeline, version, system_id, timeline, slot, epoch, lsn, state)"
        " SELECT name, %s, %s, system_id, timeline, slot, retired_epoch, %s, %s"
        " FROM runnel.subscription WHERE name = %s"
        " ON CONFLICT DO NOTHING",
        [pipeline, VERSION, str(lsn), state, subscription],
    )
    return done.rowcount == 1


def remove(connection: Connection, subscription: str, pipeline: str) -> None:
    with connection.transaction():
        connection.execute(
            "UPDATE runnel.subscription SET retired_epoch = greatest(retired_epoch, progress.epoch)"
            " FROM runnel.progress WHERE subscription.name = %s"
            " AND progress.subscription = subscription.name AND progress.pipeline = %s",
            [subscription, pipeline],
        )
        for table in ("dead_letters", "parked", "progress"):
            connection.execute(
                f"DELETE FROM runnel.{table} WHERE subscription = %s AND pipeline = %s".encode(),  # noqa: S608
                [subscription, pipeline],
            )


def begun(connection: Connection, subscription: str, pipeline: str, epoch: int | None) -> None:
    connection.execute(
        "UPDATE runnel.progress SET fresh = false"
        " WHERE subscription = %s AND pipeline = %s AND epoch = %s AND fresh",
        [subscription, pipeline, epoch],
    )


def hold(
    connection: Connection, subscription: str, pipeline: str, epoch: int | None, lsn: Lsn | None
) -> None:
    connection.execute(
        "UPDATE runnel.progress SET hold_lsn = %(lsn)s WHERE subscription = %(subscription)s"
        " AND pipeline = %(pipeline)s AND epoch = %(epoch)s AND hold_lsn IS DISTINCT FROM %(lsn)s::pg_lsn",
        {
            "subscription": subscription,
            "pipeline": pipeline,
            "epoch": epoch,
            "lsn": None if lsn is None else str(lsn),
        },
    )


def store(
    connection: Connection, subscription: str, pipeline: str, position: Position, changes: int
) -> bool:
    """False: nobody has this epoch any more."""
    done = connection.execute(
        "UPDATE runnel.progress SET lsn = %s, tables = %s, system_id = %s, timeline = %s, slot = %s,"
        " hold_lsn = CASE WHEN hold_lsn > %s THEN hold_lsn END,"
        " changes = changes + %s, last_changes = %s,"
        " last_seconds = extract(epoch FROM now() - updated_at), updated_at = now()"
        " WHERE subscription = %s AND pipeline = %s AND epoch = %s",
        [
            str(position.lsn),
            Jsonb(position.tables),
            position.lineage.system_id,
            position.lineage.timeline,
            position.lineage.slot,
            str(position.lsn),
            changes,
            changes,
            subscription,
            pipeline,
            position.epoch,
        ],
    )
    return done.rowcount == 1


def say(
    connection: Connection,
    subscription: str,
    pipeline: str,
    epoch: int | None,
    state: str,
    error: str | None,
    detail: Any,
) -> None:
    """`epoch` None: whoever has no claim may speak for a pipeline that has no owner."""
    connection.execute(
        "UPDATE runnel.progress SET state = %(state)s, error = %(error)s, detail = %(detail)s"
        " WHERE subscription = %(name)s AND pipeline = %(pipeline)s AND state <> 'joining'"
        " AND (%(epoch)s::bigint IS NULL OR epoch = %(epoch)s)"
        " AND (state, error, detail) IS DISTINCT FROM"
        " (%(state)s::text, %(error)s::text, %(detail)s::jsonb)",
        {**_words(subscription, epoch, state, error, detail), "pipeline": pipeline},
    )


def say_capture(
    connection: Connection, subscription: str, epoch: int | None, state: str, error: str | None, detail: Any
) -> None:
    connection.execute(
        "UPDATE runnel.subscription SET state = %(state)s, error = %(error)s,"
        " detail = %(detail)s, state_at = now() WHERE name = %(name)s"
        " AND (%(epoch)s::bigint IS NULL OR epoch = %(epoch)s)"
        " AND (state, error, detail) IS DISTINCT FROM"
        " (%(state)s::text, %(error)s::text, %(detail)s::jsonb)",
        _words(subscription, epoch, state, error, detail),
    )


def _words(
    subscription: str, epoch: int | None, state: str, error: str | None, detail: Any
) -> dict[str, Any]:
    return {
        "name": subscription,
        "epoch": epoch,
        "state": state,
        "error": error,
        "detail": None if detail is None else Jsonb(detail),
    }
