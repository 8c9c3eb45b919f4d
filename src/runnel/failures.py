"""Any exception as a `RunnelError`: what happened, and what to do about it.

Libraries' errors (Postgres, the file system) are translated here and nowhere else, for the command line
and for whoever records a failure of capture or of a pipeline. What nobody foresaw says that it is a bug.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

from .errors import Kind, RunnelError
from .redaction import redact

SERVER_HINTS = {
    "28P01": "check the user and password in the URL",
    "28000": "check the role, and the server's pg_hba.conf (a line for `replication` may be missing)",
    "3D000": "check the name of the database in the URL",
    "42501": "let `runnel check` list what the role may not do, with the GRANT for each",
    "53300": "free connections, or raise max_connections on the server",
    "53400": "free a replication slot or sender, or raise max_replication_slots and max_wal_senders",
    "55006": "another process uses it: `runnel status` shows which; stop that one first",
    "57P03": "the server is starting up or shutting down: try again in a moment",
    "57P01": "the server was shut down: try again when it is up",
    "57014": "the server cancelled the query: raise or unset statement_timeout for this role",
    "25006": "the server is read-only (a standby?): use the primary, or set state.url to another Postgres",
}
"""By SQLSTATE."""

HEALING = ("08", "40", "53", "57P01", "57P02", "57P03")
"""How a SQLSTATE begins that the same statement may not meet again: the connection, a conflict with
others, a lack of room, a server that stops or starts."""

FILE_HINTS = {
    errno.ENOSPC: "free some disk space, then start again: nothing is lost",
    errno.EDQUOT: "free some disk space, then start again: nothing is lost",
    errno.EACCES: "check the owner and the permissions of the path",
    errno.EPERM: "check the owner and the permissions of the path",
    errno.EROFS: "choose a path that can be written to",
    errno.EMFILE: "raise the limit of open files: ulimit -n 65536",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path: a part of it is a file",
}


def explain(error: BaseException) -> RunnelError:
    if isinstance(error, RunnelError):
        return error
    psycopg: Any = sys.modules.get("psycopg")
    if psycopg is not None and isinstance(error, psycopg.Error):
        return _server(error)
    if isinstance(error, OSError) and error.errno is not None:
        where = f"{error.filename}: " if error.filename else ""
        hint = FILE_HINTS.get(error.errno, "--debug shows where it happened")
        return RunnelError(f"{where}{error.strerror or os.strerror(error.errno)}", hint=hint)
    if isinstance(error, MemoryError):
        return RunnelError("out of memory", hint="lower batch.max_bytes, or give the machine more")
    return RunnelError(
        f"unexpected {type(error).__name__}: {_first_line(error)}",
        hint="this is a bug in Runnel: please report it with the output of the same command under --debug",
    )


def _server(error: Any) -> RunnelError:
    state = getattr(error, "sqlstate", None)
    said = redact(getattr(error.diag, "message_primary", None) or _first_line(error))
    if state is None:
        # libpq itself: it never reached the server, or lost it.
        return RunnelError(
            f"cannot reach the database: {said}",
            hint="check the URL (host, port, database), and that the server is up and lets this machine in",
            kind=Kind.TRANSIENT,
        )
    hint = getattr(error.diag, "message_hint", None) or "`runnel check` tells what the source lacks"
    return RunnelError(
        f"the database said: {said} (SQLSTATE {state})",
        hint=SERVER_HINTS.get(state, hint),
        kind=Kind.TRANSIENT if state.startswith(HEALING) else Kind.FAILED,
    )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return redact(lines[0].strip()) if lines else "no message"
