"""The replication connection: psycopg's `pq` layer, read lazily.

What comes in: bytes from the walsender. What goes out: bursts, lists of CopyData payloads as libpq gives
them; status updates to the server.

What must hold:
- Reading eagerly makes the walsender spend twice the CPU on wake-ups. So: read until the socket is
  empty, then nap a few milliseconds while the stream flows; wait in poll() only when it is quiet.
- The server ends a connection it has not heard from for `wal_sender_timeout`, even when its question (a
  keepalive) lies behind data we do not read. So a thread sends a status update every third of
  that time, whatever the rest of capture does: waits for the disk, for the catalogue, for pipelines.
- A network that takes our bytes and passes none looks like a quiet server. So when nothing came for a
  while the server is asked for a word, and the connection counts as lost when none comes.
- libpq connections are not for two threads: every use is under one lock.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import conninfo, pq

from ..errors import RunnelError
from ..postgres.connect import SESSION, connect_error, parse_url, where
from ..postgres.lsn import Lsn
from .protocol import Frames, Keepalive, status_update
from .transport import SocketTransport, Transport, choose, result_error
from .trouble import stream_error

NAP = 0.0055
FLOWING = 0.05
"""Seconds after the last data during which the stream counts as flowing."""
_RECEIVE_BUFFER = 1 << 20
_LONGEST_SILENCE = 10.0
PATIENCE = 60.0
"""Seconds without a byte from the server, the second half of them after it was asked for one. Where its
`wal_sender_timeout` is longer, or off, it may also be silent for longer: see `_prepare`."""
_PATIENCE_WITHOUT_TIMEOUT = 300.0


class ReplicationStream:
    """One connection in replication mode. Thread-safe; `read` and `wait` are for one thread."""

    def __init__(self, url: str, application: str, *, plain_socket: bool = True) -> None:
        """`plain_socket` False: through libpq even where there is no encryption."""
        self._server = where(url)
        self._lock = threading.Lock()
        parameters: dict[str, Any] = {
            "connect_timeout": 10,
            "application_name": application,
            "keepalives_idle": 20,
            "keepalives_interval": 10,
            "keepalives_count": 3,
            "tcp_user_timeout": 60_000,
            "gssencmode": "disable",
            **parse_url(url),
            "replication": "database",
        }
        try:
            # Not by libpq's blocking call, which would stop every other thread until it is answered.
            self._connection = psycopg.connect(conninfo.make_conninfo(**parameters), autocommit=True)
        except psycopg.Error as error:
            raise connect_error(error, url) from None
        self._conn = self._connection.pgconn
        self._conn.nonblocking = 0
        self.server_version = self._conn.server_version
        self.silence = _LONGEST_SILENCE
        """Seconds after which the server is told something, whatever happens."""
        self.patience = PATIENCE
        self._heard = time.monotonic()
        self._asked: float | None = None
        self._write = self._flush = 0
        self._told = time.monotonic()
        self._last_data = 0.0
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: RunnelError | None = None
        try:
            self._prepare()
        except BaseException:
            self._conn.finish()
            raise
        encrypted = not plain_socket or parameters["gssencmode"] != "disable"
        self._transport: Transport = choose(self._conn, self._server, encrypted=encrypted)

    def _prepare(self) -> None:
        calls = ", ".join(f"pg_catalog.set_config('{name}', '{value}', false)" for name, value in SESSION)
        self._query(f"SELECT {calls}")
        timeout = self._query(
            "SELECT setting::bigint FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout'"
        )
        if timeout:  # milliseconds; 0 switches it off
            self.silence = min(_LONGEST_SILENCE, timeout / 3000)
            # Deep in a large transaction a walsender looks at our questions every half of its timeout.
            if timeout > 60_000:
                self.patience = max(self.patience, 2 * timeout / 1000)
        else:
            self.patience = max(self.patience, _PATIENCE_WITHOUT_TIMEOUT)
        # A duplicate shares the socket with libpq but not its ownership.
        with socket.socket(fileno=os.dup(self._conn.socket)) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
        self._poll = select.poll()
        self._poll.register(self._conn.socket, select.POLLIN)

    def _query(self, query: str) -> int:
        with self._bounded():
            result = self._conn.exec_(query.encode())
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise result_error(result, self._server)
        value = result.get_value(0, 0) if result.ntuples else None
        return int(value) if value and value.isdigit() else 0

    @contextmanager
    def _bounded(self) -> Iterator[None]:
        """libpq's own waiting has no end: cut the line when the answer does not come."""
        duplicate = socket.socket(fileno=os.dup(self._conn.socket))

        def cut() -> None:
            with suppress(OSError):
                duplicate.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(self.patience, cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
            duplicate.close()

    def timeline_history(self, timeline: int) -> str | None:
        """The text of the server's history file. Only before `start`."""
        with self._bounded():
            result = self._conn.exec_(f"TIMELINE_HISTORY {timeline}".encode())
        if result.status != pq.ExecStatus.TUPLES_OK or not result.ntuples:
            return None  # timeline 1 has none, and so may a restored server
        value = result.get_value(0, 1)
        return value.decode(errors="replace") if value else None

    # the stream

    def start(self, slot: str, publication: str, lsn: Lsn, *, streaming: bool) -> None:
        """From now on the server sends what commits at or after `lsn`."""
        escape = pq.Escaping(self._conn)
        publications = escape.escape_literal(escape.escape_identifier(publication.encode())).decode()
        options = [f"publication_names {publications}"]
        if self.server_version >= 160_000:
            options.append("proto_version '4'")
        else:
            options.append(f"proto_version '{2 if self.server_version >= 140_000 else 1}'")
        if self.server_version >= 140_000:
            options.append("messages 'true'")
            if streaming:
                options.append("streaming 'on'")
        name = escape.escape_identifier(slot.encode()).decode()
        with self._bounded():
            self._transport.start(f"START_REPLICATION SLOT {name} LOGICAL {lsn} ({', '.join(options)})")
        self._heard = time.monotonic()
        self._thread = threading.Thread(target=self._keep_alive, name="runnel-keepalive", daemon=True)
        self._thread.start()

    def read(self) -> tuple[Frames, list[Keepalive]]:
        """What has arrived, at most about 1 MB. Never blocks."""
        with self._lock:
            frames, keepalives = self._transport.receive()
        now = time.monotonic()
        if len(frames):
            self._last_data = now
        if len(frames) or keepalives or not self._transport.drained:
            self._heard, self._asked = now, None
        elif now - self._heard > self.patience / 2:
            self._ask(now)
        return frames, keepalives

    def _ask(self, now: float) -> None:
        """Nothing came, though the socket is read: is there still somebody?"""
        if self._asked is None:
            self._asked = now
            with self._lock:
                self._send(reply=True)
        elif now - self._asked > self.patience / 2:
            raise stream_error(
                None, f"no word for {now - self._heard:.0f} s, though it was asked for one", self._server
            )

    @property
    def drained(self) -> bool:
        """Whether the last `read` left nothing in the socket."""
        return self._transport.drained

    def wait(self, timeout: float) -> None:
        """After a `read`: until there may be more, or `timeout`."""
        if self._failure is not None:
            raise self._failure
        if time.monotonic() - self._last_data < FLOWING:
            time.sleep(min(NAP, timeout))
        elif self._poll.poll(timeout * 1000):
            self._heard, self._asked = time.monotonic(), None  # maybe a part of a large message

    # what the server is told

    def status(self, write: Lsn, flush: Lsn, *, now: bool = False) -> None:
        """What has been received, and what the slot may forget. Sent if `flush` moved, or `now`."""
        with self._lock:
            moved = flush > self._flush
            self._write, self._flush = max(self._write, write), max(self._flush, flush)
            if moved or now:
                self._send()

    def _send(self, *, reply: bool = False) -> None:
        now = time.time_ns() // 1000
        self._transport.send(status_update(self._write, self._flush, now, reply=reply))
        self._told = time.monotonic()

    def _keep_alive(self) -> None:
        while not self._closed.wait(self.silence / 4):
            if time.monotonic() - self._told < self.silence * 0.75:
                continue
            with self._lock:
                if self._closed.is_set():
                    return
                try:
                    self._send()
                except RunnelError as error:
                    self._failure = error  # the reading thread raises it
                    return

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            if isinstance(self._transport, SocketTransport):
                self._transport.close()
            self._conn.finish()
