"""How CopyData travels once libpq has connected and authenticated: two ways, one face.

What comes in: bytes from the walsender. What goes out: `Frames` and keepalives of a burst; status updates.

- `LibpqTransport` asks libpq for one message after the other. It works everywhere: TLS, GSS.
- `SocketTransport` takes over the plain socket and finds all messages of a burst with numpy. libpq makes
  an object per message; this makes none, which halves capture's CPU and does more for small transactions.

What must hold: never block; a message is handed out whole or not yet. Only the wire format of the
front of each message is known here ('d' CopyData, 'E' error …); pgoutput is protocol.py's.
"""

from __future__ import annotations

import select
import socket
from typing import Protocol

import numpy as np
import numpy.typing as npt
import psycopg
from psycopg import pq

from ..errors import Refused, RunnelError
from .protocol import KEEPALIVE, XLOG_DATA, Frames, Keepalive, frames_of, known, parse_keepalive, split
from .trouble import stream_error

BURST = 1 << 20
_CALLS = 64
"""consume_input() takes what libpq's buffer holds, 16 kB or more: about 1 MB makes a burst."""
_HEAD = 5
"""Type byte and length before a message."""
_COPY_DATA = ord("d")
_INSIDE = (XLOG_DATA, KEEPALIVE)
_PASSED_OVER = (b"N", b"S")
"""Notices and parameter changes may come at any time and mean nothing here."""
_ENDING = (b"c", b"C", b"Z")
"""The server ends the stream."""
_LONGEST = {_COPY_DATA: 1 << 30}
"""Bytes of a message; of those that are not listed 1 MB. A longer one is no message of Postgres."""


class Transport(Protocol):
    drained: bool
    """Whether the last `receive` left nothing in the socket."""

    def start(self, command: str) -> None:
        """START_REPLICATION; returns when the stream has begun."""
        ...

    def receive(self) -> tuple[Frames, list[Keepalive]]:
        """What has arrived, at most about 1 MB (or one larger message); maybe nothing."""
        ...

    def send(self, payload: bytes) -> None:
        """CopyData to the server, at once or as soon as the socket takes it."""
        ...


def choose(conn: pq.abc.PGconn, server: str, *, encrypted: bool) -> Transport:
    """`server`: where, for people. `encrypted`: something else than TLS may encrypt the connection."""
    if conn.ssl_in_use or encrypted:
        return LibpqTransport(conn, server)
    return SocketTransport(conn, server)


_NOTHING = frames_of(memoryview(b""), np.zeros(0, np.int64))


class LibpqTransport:
    def __init__(self, conn: pq.abc.PGconn, server: str) -> None:
        self.drained = True
        self._conn = conn
        self._server = server
        self._poll = select.poll()
        self._poll.register(conn.socket, select.POLLIN)

    def start(self, command: str) -> None:
        result = self._conn.exec_(command.encode())
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise result_error(result, self._server)
        self._conn.nonblocking = 1

    def receive(self) -> tuple[Frames, list[Keepalive]]:
        messages: list[bytes] = []
        get, take, keep = self._conn.get_copy_data, self._conn.consume_input, messages.append
        calls = dry = 0
        self.drained = False
        try:
            while True:
                size, data = get(1)
                while size > 0:
                    keep(data)  # type: ignore[arg-type]
                    dry = 0
                    size, data = get(1)
                if size < 0 or calls == _CALLS:
                    break
                if dry and not self._poll.poll(0):
                    self.drained = True  # nothing in libpq, nothing in TLS, nothing in the socket
                    break
                take()
                calls += 1
                dry += 1
        except psycopg.Error as error:
            raise self._lost(error) from error
        if size < 0:
            raise result_error(self._conn.get_result(), self._server)
        return split(messages) if messages else (_NOTHING, [])

    def send(self, payload: bytes) -> None:
        try:
            self._conn.put_copy_data(payload)
            self._conn.flush()
        except psycopg.Error as error:
            raise self._lost(error) from error

    def _lost(self, error: psycopg.Error) -> RunnelError:
        result = self._conn.get_result() if self._conn.status == pq.ConnStatus.OK else None
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            return result_error(result, self._server)
        return stream_error(None, str(error), self._server)


def result_error(result: pq.abc.PGresult | None, server: str) -> RunnelError:
    if result is None or result.status != pq.ExecStatus.FATAL_ERROR:
        return stream_error(None, "the server ended the stream", server)
    code = result.error_field(pq.DiagnosticField.SQLSTATE)
    text = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)
    message = (text or result.get_error_message().encode()).decode(errors="replace")
    return stream_error(code.decode() if code else None, message, server)


class SocketTransport:
    """From `start` on libpq does not touch the socket any more; closing its connection closes it."""

    def __init__(self, conn: pq.abc.PGconn, server: str) -> None:
        self.drained = True
        self._server = server
        self._socket = socket.fromfd(conn.socket, socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._buffer = np.empty(2 * BURST, np.uint8)
        self._filled = 0
        self._needed = 0
        """Bytes of the message at the front, while it is not whole."""
        self._unsent = b""

    def close(self) -> None:
        self._socket.close()

    def start(self, command: str) -> None:
        query = command.encode() + b"\0"
        self._socket.settimeout(60.0)  # replaying a long WAL comes after the answer, not before
        try:
            self._socket.sendall(b"Q" + (len(query) + 4).to_bytes(4, "big") + query)
            while True:
                kind, body = self._one_message()
                if kind == b"W":
                    break
                if kind == b"E":
                    raise self._server_error(body)
                if kind not in _PASSED_OVER:
                    raise self._foreign(kind, len(body))
        except OSError as error:
            raise self._lost(error) from error
        self._socket.setblocking(False)

    def _one_message(self) -> tuple[bytes, bytes]:
        head = self._exactly(_HEAD)
        size = int.from_bytes(head[1:], "big")
        if not 4 <= size <= _LONGEST.get(head[0], BURST):
            raise self._foreign(head[:1], size)
        return head[:1], self._exactly(size - 4)

    def _exactly(self, size: int) -> bytes:
        out = b""
        while len(out) < size:
            part = self._socket.recv(size - len(out))
            if not part:
                raise self._lost(None)
            out += part
        return out

    def receive(self) -> tuple[Frames, list[Keepalive]]:
        if self._unsent:
            self.send(b"")
        self._fill()
        if self._filled < max(_HEAD, self._needed):
            return _NOTHING, []
        starts, ends = _copy_data(self._buffer[: self._filled])
        if not len(ends):
            self._look_at_front()
            return _NOTHING, []
        found = self._frames(starts, ends)
        self._drop(int(ends[-1]))
        return found

    def _fill(self) -> None:
        room = memoryview(self._buffer.data)
        self.drained = False
        try:
            while self._filled < max(BURST, self._needed):
                got = self._socket.recv_into(room[self._filled :])
                if not got:
                    raise self._lost(None)
                self._filled += got
        except BlockingIOError:
            self.drained = True
        except OSError as error:
            raise self._lost(error) from error

    def _drop(self, size: int) -> None:
        """Take `size` bytes from the front; what stays is the beginning of the next message."""
        rest = self._filled - size
        kept = self._buffer[size : self._filled].copy()
        if rest < BURST < len(self._buffer) // 2:  # grown for one large message
            self._buffer = np.empty(2 * BURST, np.uint8)
        self._buffer[:rest] = kept
        self._filled, self._needed = rest, 0
        if rest and (
            self._buffer[0] != _COPY_DATA or (rest > _HEAD and self._buffer[_HEAD] not in _INSIDE)
        ):
            self.drained = False  # it may be whole already

    def _look_at_front(self) -> None:
        """No whole CopyData message at the front: one that is still coming, or another kind, of which a
        notice is passed over and anything else ends the stream."""
        kind = self._buffer[:1].tobytes()
        size = 1 + int.from_bytes(self._buffer[1:_HEAD].tobytes(), "big")
        if not _HEAD <= size <= _LONGEST.get(kind[0], BURST) or (
            kind[0] != _COPY_DATA and kind not in (b"E", *_PASSED_OVER, *_ENDING)
        ):
            raise self._foreign(kind, size - 1)  # before waiting for it: it may never be whole
        if size > self._filled:
            self._needed = size
            if size > len(self._buffer):
                grown = np.empty(size + BURST, np.uint8)
                grown[: self._filled] = self._buffer[: self._filled]
                self._buffer = grown
        elif kind == b"E":
            raise self._server_error(self._buffer[_HEAD:size].tobytes())
        elif kind in _PASSED_OVER:
            self._drop(size)
            self.drained = False
        elif kind in _ENDING:
            raise stream_error(None, "the server ended the stream", self._server)
        else:
            raise self._foreign(kind, size - 1)

    def _frames(
        self, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
    ) -> tuple[Frames, list[Keepalive]]:
        done = int(ends[-1])
        buffer = self._buffer[:done]
        keep = np.ones(done, np.bool_)
        keep[(starts[:, None] + np.arange(_HEAD)).ravel()] = False
        keepalives = []
        data = buffer[starts + _HEAD] == XLOG_DATA
        if not data.all():
            for start, end in zip(starts[~data].tolist(), ends[~data].tolist(), strict=True):
                keepalives.append(parse_keepalive(buffer[start + _HEAD : end].tobytes()))
                keep[start:end] = False
            starts, ends = starts[data], ends[data]
        return known(frames_of(memoryview(buffer[keep].data), ends - starts - _HEAD)), keepalives

    def send(self, payload: bytes) -> None:
        if payload:
            self._unsent += b"d" + (len(payload) + 4).to_bytes(4, "big") + payload
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            return
        except OSError as error:
            raise self._lost(error) from error
        self._unsent = self._unsent[sent:]

    def _server_error(self, body: bytes) -> RunnelError:
        fields = {part[:1]: part[1:].decode(errors="replace") for part in body.split(b"\0") if part}
        return stream_error(fields.get(b"C"), fields.get(b"M", "unknown error"), self._server)

    def _foreign(self, kind: bytes, size: int) -> Refused:
        return Refused(
            f"replication from {self._server}: a message of type {kind.decode('latin-1')!r}"
            f" and {size} bytes, which has no place in the stream",
            hint="check that the URL names a PostgreSQL server, and no proxy that changes the protocol;"
            " else use a Runnel version that supports this server version",
        )

    def _lost(self, error: OSError | None) -> RunnelError:
        text = "the server closed the connection" if error is None else error.strerror or str(error)
        return stream_error(None, text, self._server)


def _copy_data(buffer: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Starts and ends of the whole CopyData messages at the front of the buffer.

    Candidates are found by their pattern in one scan (a length below 16 MB, then 'w' or 'k'). If each
    begins where the one before ended, all are messages, by induction. If not (row data that looks like a
    message, a larger message, an error message), they are walked one by one."""
    size = len(buffer)
    if size <= _HEAD:
        return _EMPTY, _EMPTY
    kind = buffer[_HEAD:]
    likely = (buffer[:-_HEAD] == _COPY_DATA) & (buffer[1 : 1 - _HEAD] == 0)
    starts = np.flatnonzero(likely & ((kind == XLOG_DATA) | (kind == KEEPALIVE)))
    lengths: npt.NDArray[np.uint32] = np.ndarray((size - 3,), ">u4", buffer.data, 0, (1,))
    ends = starts + 1 + lengths[starts + 1]
    if not len(starts) or starts[0] != 0 or (starts[1:] != ends[:-1]).any():
        return _walk(buffer, lengths)
    if ends[-1] > size:
        return starts[:-1], ends[:-1]
    return starts, ends


def _walk(
    buffer: npt.NDArray[np.uint8], lengths: npt.NDArray[np.uint32]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    starts, ends = [], []
    at, size = 0, len(buffer)
    while at + _HEAD <= size and buffer[at] == _COPY_DATA:
        end = at + 1 + int(lengths[at + 1])
        if end > size or end <= at + _HEAD:
            break
        starts.append(at)
        ends.append(end)
        at = end
    return np.array(starts, np.int64), np.array(ends, np.int64)


_EMPTY = np.zeros(0, np.int64)
