"""Who owns capture or a pipeline now: session advisory locks in the state database.

A lock falls with its connection, so it tells who lives without a heartbeat. It needs a session of
its own: a pooler in transaction mode would share it. After a network failure the server may take a
minute to notice that a connection is dead; `identity` tells such a ghost of our own from a stranger.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
from dataclasses import dataclass
from datetime import datetime
from weakref import WeakKeyDictionary

from ..errors import Refused
from ..postgres.connect import Connection

OWNER_VARIABLE = "RUNNEL_OWNER"
"""A supervisor's identity, handed to its children: only one of a kind lives at a time."""
_TOKEN = secrets.token_hex(3)


def identity() -> str:
    """Names this process, or the supervisor it belongs to, in pg_stat_activity; nobody else has it."""
    return os.environ.get(OWNER_VARIABLE) or f"runnel {os.getpid()}@{socket.gethostname()[:40]} {_TOKEN}"


class AlreadyRunning(Refused):
    """Another process owns it and lives."""


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


_sessions: WeakKeyDictionary[Connection, int] = WeakKeyDictionary()


def remember(connection: Connection) -> None:
    """A session of this process: as long as its connection is open it is no ghost."""
    _sessions[connection] = connection.info.backend_pid


def banish_ghost(connection: Connection, owner: Owner) -> bool:
    """End a session that an earlier connection of ours left at the server. False: it is not ours."""
    mine = connection.info.parameter_status("application_name")
    alive = any(pid == owner.pid and not known.closed for known, pid in list(_sessions.items()))
    if owner.application != mine or mine != identity() or alive:
        return False
    connection.execute("SELECT pg_terminate_backend(%s)", [owner.pid])
    return True


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
