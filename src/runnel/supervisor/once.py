"""The bound of `run --once`: a place in the source's WAL that everything committed so far is before.

The marker is a transactional message with Runnel's own prefix, which no pipeline delivers. Everything
committed earlier is before it, and it gives capture something to receive at once; without it (a source
that cannot be written) the bound is what is flushed, and the server's keepalive brings the log past it.
A paused pipeline would never get there.
"""

from __future__ import annotations

from collections.abc import Iterable

import psycopg

from ..config import Config
from ..errors import Refused
from ..failures import explain
from ..postgres.connect import connect
from ..postgres.lsn import Lsn
from ..progress.state import State


def refuse_paused(config: Config, pipelines: Iterable[str]) -> None:
    try:
        with State.connect(config.state_url, config.source.name) as state:
            rows = state.pipelines()
    except psycopg.Error as error:
        raise explain(error) from error
    for name in pipelines:
        if name in rows and rows[name].paused:
            raise Refused(
                f"pipeline {name!r} is paused: it would never be done", hint=f"runnel resume {name}"
            )


def mark_now(url: str) -> Lsn:
    with connect(url, "runnel run --once") as connection:
        row = connection.execute("SELECT pg_catalog.pg_is_in_recovery()").fetchone()
        if row is not None and row[0]:
            return _lsn(connection, "SELECT pg_catalog.pg_last_wal_replay_lsn()::text")
        try:
            marker = _lsn(
                connection, "SELECT pg_catalog.pg_logical_emit_message(true, 'runnel', 'once')::text"
            )
        except psycopg.Error:
            return _lsn(connection, "SELECT pg_catalog.pg_current_wal_flush_lsn()::text")
        # The message ends there and its commit follows: whoever is past it has passed the marker, or a
        # commit that was made at the same moment.
        return Lsn(marker + 1)


def _lsn(connection: psycopg.Connection[tuple[str, ...]], query: str) -> Lsn:
    row = connection.execute(query.encode()).fetchone()
    return Lsn.parse(row[0]) if row is not None and row[0] else Lsn(0)
