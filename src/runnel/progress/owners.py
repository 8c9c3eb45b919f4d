"""Who owns capture or a pipeline now: session advisory locks in the state database.

A lock falls with its connection, so it tells who lives without a heartbeat. It needs a session of
its own: a pooler in transaction mode would share it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime

from ..postgres.connect import Connection


@dataclass(frozen=True, slots=True)
class Owner:
    pid: int
    application: str
    client: str
    since: datetime

    def __str__(self) -> str:
        return (
            f"server process {self.pid}, {self.application!r} from {self.client}, since {self.since:%F %T}Z"
        )


def key(subscription: str, who: str) -> int:
    """64 bits in the database's one space of advisory locks, the same from every machine."""
    name = f"runnel\0{subscription}\0{who}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big", signed=True)


def try_lock(connection: Connection, lock: int) -> bool:
    row = connection.execute("SELECT pg_try_advisory_lock(%s)", [lock]).fetchone()
    return bool(row and row[0])


def unlock(connection: Connection, lock: int) -> None:
    connection.execute("SELECT pg_advisory_unlock(%s)", [lock])


def holder(connection: Connection, lock: int) -> Owner | None:
    bits = lock & 0xFFFFFFFFFFFFFFFF  # pg_locks shows the key as two unsigned halves
    row = connection.execute(
        "SELECT l.pid, coalesce(a.application_name, ''),"
        " coalesce(host(a.client_addr), 'a local socket'), coalesce(a.backend_start, now())"
        " FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid"
        " WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1"
        " AND l.classid = %s::int8::oid AND l.objid = %s::int8::oid"
        " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())",
        [bits >> 32, bits & 0xFFFFFFFF],
    ).fetchone()
    return None if row is None else Owner(*row)
