"""Ordinary connections to Postgres: any libpq URL in, a connection with known settings out.

TLS, passwords (`.pgpass`, service files, `PG*` variables) and several hosts are libpq's business and
work as its manual says. What must hold: a dead peer is noticed within a minute on both sides (an
owner's advisory lock must fall with its machine), and where `silence` is given also one whose network takes
bytes and passes none; no setting of the role or database changes what a
query means or ends an idle session; no error ever shows a password.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, LiteralString, TypeVar
from urllib.parse import quote, urlencode

import psycopg
from psycopg import conninfo
from psycopg.rows import TupleRow

from ..errors import Kind, RunnelError
from ..redaction import without

Connection = psycopg.Connection[TupleRow]

T = TypeVar("T")

SILENCE = 60.0
"""Seconds without a byte from the server in which a short statement must have been answered."""

_PARAMETERS: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 20,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""Only where the URL does not say otherwise."""

SESSION: tuple[tuple[LiteralString, LiteralString], ...] = (
    # how values look as text, so that they never depend on the role or the database
    ("datestyle", "ISO"),
    ("timezone", "UTC"),
    ("intervalstyle", "postgres"),
    ("extra_float_digits", "3"),
    ("bytea_output", "hex"),
    ("client_encoding", "UTF8"),
    # names are always written with their schema; nobody's function can stand in for a built-in one
    ("search_path", ""),
    # a session that holds an advisory lock is idle by nature
    ("statement_timeout", "0"),
    ("lock_timeout", "0"),
    ("idle_in_transaction_session_timeout", "0"),
    ("default_transaction_isolation", "read committed"),
    # a position that was stored must survive a crash of the server: the slot moves because of it
    ("synchronous_commit", "on"),
    ("tcp_keepalives_idle", "20"),
    ("tcp_keepalives_interval", "10"),
    ("tcp_keepalives_count", "3"),
)
_SESSION_14: tuple[tuple[LiteralString, LiteralString], ...] = (("idle_session_timeout", "0"),)

_SECRETS = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")

_TLS = "check sslmode, sslrootcert, sslcert, sslkey and the host's name in the URL"
_TLS_LOST = "the connection broke during TLS; if it lasts, look at the server's log and at what is between"

_HINTS: tuple[tuple[str, str, Kind], ...] = (
    # A broken handshake comes first: under sslmode=prefer libpq then tries without TLS, and what the
    # server says to that (no pg_hba.conf entry) tells nothing about the next attempt.
    ("SSL SYSCALL error", _TLS_LOST, Kind.TRANSIENT),
    ("SSL connection has been closed", _TLS_LOST, Kind.TRANSIENT),
    ("unexpected eof while reading", _TLS_LOST, Kind.TRANSIENT),
    ("password authentication failed", "check user and password in the URL", Kind.FAILED),
    ("no password supplied", "give a password in the URL, ~/.pgpass or PGPASSWORD", Kind.FAILED),
    ("no pg_hba.conf entry", "add a line for this user, database and address to pg_hba.conf", Kind.FAILED),
    ("does not exist", "check the database and user in the URL", Kind.FAILED),
    ("does not support SSL", "set ssl = on on the server, or another sslmode in the URL", Kind.FAILED),
    ("invalid response to SSL negotiation", "is that port really a Postgres server's?", Kind.FAILED),
    *(
        (said, _TLS, Kind.FAILED)
        for said in (
            "certificate verify failed",
            "certificate file",
            "private key file",
            "does not match host name",
            "host name from server certificate",
            "for a verified SSL connection",
            "valid client certificate",
            "certificate required",
            "certificate authentication failed",
            "unknown ca",
            "bad certificate",
            "certificate expired",
            "certificate revoked",
            "certificate unknown",
            "alert handshake failure",
            "protocol version",
            "unsupported protocol",
            "sslmode",
        )
    ),
    ("permission denied", "GRANT CONNECT ON DATABASE to this user", Kind.FAILED),
    ("not permitted to log in", "ALTER ROLE … LOGIN", Kind.FAILED),
    ("too many", "free connections or raise max_connections", Kind.TRANSIENT),
    ("remaining connection slots", "free connections or raise max_connections", Kind.TRANSIENT),
    ("starting up", "the server is starting; wait a moment", Kind.TRANSIENT),
    ("shutting down", "the server is stopping; start it again", Kind.TRANSIENT),
    ("recovery mode", "the server is recovering; wait a moment", Kind.TRANSIENT),
    ("translate host name", "check the host in the URL", Kind.TRANSIENT),
    ("resolve host", "check the host in the URL", Kind.TRANSIENT),
    ("refused", "is the server running there, and does listen_addresses include it?", Kind.TRANSIENT),
    ("timeout", "is the host reachable from here (firewall, network)?", Kind.TRANSIENT),
    ("SSL", _TLS_LOST, Kind.TRANSIENT),
)


class _Bounded(psycopg.Connection[TupleRow]):
    """Gives up a statement, and itself, when the server is silent for too long."""

    silence = SILENCE

    def wait(self, gen: Generator[Any, Any, T], *more: Any, **named: Any) -> T:
        return super().wait(self._heard(gen), *more, **named)

    def _heard(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        deadline = time.monotonic() + self.silence
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                now = time.monotonic()
                if ready:
                    deadline = now + self.silence
                elif now > deadline:
                    self.close()  # the answer may still come, and nobody would know to what
                    raise psycopg.OperationalError(
                        f"no answer from the server for {self.silence:.0f} s: the network passes nothing"
                    )
                else:
                    gen.send(ready)
                    continue
                wanted = gen.send(ready)
        except StopIteration as end:
            result: T = end.value
            return result


def connect(url: str, application: str, *, silence: float | None = None) -> Connection:
    """An autocommit connection. `application` is what pg_stat_activity shows. `silence`: seconds within
    which every statement is answered or the connection is lost; only where none may take long."""
    parameters = parse_url(url)
    for name, value in _PARAMETERS.items():
        parameters.setdefault(name, value)
    parameters.setdefault("application_name", application)
    try:
        if silence is None:
            connection = psycopg.connect(**parameters, autocommit=True)
        else:
            connection = _Bounded.connect(**parameters, autocommit=True)
            connection.silence = silence
    except psycopg.Error as error:
        raise connect_error(error, url) from None
    settings = SESSION
    if connection.info.server_version >= 140_000:
        settings += _SESSION_14
    calls = ", ".join(["pg_catalog.set_config(%s, %s, false)"] * len(settings))
    try:
        connection.execute(f"SELECT {calls}".encode(), [part for pair in settings for part in pair])
    except psycopg.Error:
        connection.close()
        raise
    return connection


def parse_url(url: str) -> dict[str, Any]:
    try:
        return dict(conninfo.conninfo_to_dict(url))
    except psycopg.Error:
        # libpq's own message may repeat the part it did not understand: a password, for one
        raise RunnelError(
            "the Postgres URL cannot be read",
            hint="expected postgresql://user:password@host:5432/database?sslmode=…; "
            "percent-encode special characters in the password",
            kind=Kind.USAGE,
        ) from None


def where(url: str) -> str:
    """The URL for people: user, host, port and database, nothing else."""
    try:
        found = parse_url(url)
    except RunnelError:
        return "postgresql://…"
    host = found.get("host") or found.get("hostaddr") or "local socket"
    port = f":{found['port']}" if found.get("port") else ""
    user = f"{found['user']}@" if found.get("user") else ""
    return f"postgresql://{user}{host}{port}/{found.get('dbname') or ''}"


def without_secrets(url: str) -> str:
    """The URL to connect with again, but for what must not be shown."""
    found = {name: str(value) for name, value in parse_url(url).items() if name not in _SECRETS}
    user, host, port = found.pop("user", ""), found.get("host", ""), found.get("port", "")
    at = ""
    if host and not host.startswith(("/", "@")) and "," not in host:
        at = f"[{host}]" if ":" in host else host
        at += f":{port}" if port else ""
        found = {name: value for name, value in found.items() if name not in ("host", "port")}
    user = f"{quote(user, safe='')}@" if user else ""
    base = f"postgresql://{user}{at}/{quote(found.pop('dbname', ''), safe='')}"
    return f"{base}?{urlencode(found, quote_via=quote, safe='/,')}" if found else base


def connect_error(error: psycopg.Error, url: str) -> RunnelError:
    """What libpq said when it could not connect, in one line, without secrets, with a remedy."""
    text = " ".join(str(error).split())
    for secret in ("password", "sslpassword", "passfile"):
        text = without(text, str(parse_url(url).get(secret) or ""))
    for part, hint, kind in _HINTS:
        if part in text:
            return RunnelError(f"cannot connect to {where(url)}: {text}", hint=hint, kind=kind)
    return RunnelError(
        f"cannot connect to {where(url)}: {text}", hint="check the URL and the server", kind=Kind.TRANSIENT
    )
