"""The plain socket: messages come out whole and in order however the bytes are cut."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import pq

import pgoutput as pg
from runnel.capture.transport import SocketTransport
from runnel.errors import Kind, RunnelError


def copy_data(payload: bytes) -> bytes:
    return b"d" + struct.pack("!I", len(payload) + 4) + payload


class Line:
    """A transport and the server's end of its socket."""

    def __init__(self) -> None:
        self.server, client = socket.socketpair()
        self.transport = SocketTransport(
            cast(pq.abc.PGconn, SimpleNamespace(socket=client.fileno())), "postgresql://here/db"
        )
        client.close()

    def close(self) -> None:
        self.server.close()
        self.transport.close()

    def received(self) -> tuple[list[bytes], list[int]]:
        frames: list[bytes] = []
        alive: list[int] = []
        while True:
            found, keepalives = self.transport.receive()
            for number in range(len(found)):
                frames.append(bytes(found.data[int(found.start[number]) : int(found.start[number + 1])]))
            alive += [keepalive.wal_end for keepalive in keepalives]
            if self.transport.drained:
                return frames, alive


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line()
    yield line
    line.close()


LOOKALIKE = pg.insert(1, "x" + copy_data(b"w").decode() + "d\0\0\0\x05w and d\0\0\0\x05k")

payloads = st.lists(
    st.one_of(
        st.text(max_size=60).map(lambda text: pg.insert(1, text)),
        st.integers(0, 2**40).map(pg.keepalive),
        st.just(LOOKALIKE),
        st.just(pg.begin(1, 1)),
    ),
    max_size=30,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(payloads, st.lists(st.integers(1, 40), min_size=1, max_size=20))
def test_messages_come_out_whole_however_the_bytes_are_cut(sent: list[bytes], cuts: list[int]) -> None:
    line = Line()
    try:
        raw = b"".join(map(copy_data, sent))
        frames: list[bytes] = []
        alive: list[int] = []
        at = turn = 0
        while at < len(raw):
            size = cuts[turn % len(cuts)] * (1 if turn % 3 else 20)
            line.server.sendall(raw[at : at + size])
            at, turn = at + size, turn + 1
            more, told = line.received()
            frames += more
            alive += told
        assert frames == [payload for payload in sent if payload[:1] == b"w"]
        assert alive == [struct.unpack_from("!Q", payload, 1)[0] for payload in sent if payload[:1] == b"k"]
    finally:
        line.close()


def test_a_message_larger_than_the_buffer_and_than_sixteen_megabytes_arrives(line: Line) -> None:
    large = pg.insert(1, "x" * (17 << 20))
    raw = memoryview(copy_data(pg.begin(1, 1)) + copy_data(large) + copy_data(pg.commit(1, 2)))
    line.server.setblocking(False)
    frames: list[bytes] = []
    while len(frames) < 3:
        if raw:
            with contextlib.suppress(BlockingIOError):
                raw = raw[line.server.send(raw) :]
        frames += line.received()[0]
    assert [len(frame) for frame in frames] == [46, len(large), 51]


def test_a_notice_between_messages_is_passed_over(line: Line) -> None:
    notice = b"N" + struct.pack("!I", 4 + 8) + b"SNOTICE\0"
    line.server.sendall(copy_data(pg.begin(1, 1)) + notice + copy_data(pg.commit(1, 2)))
    assert len(line.received()[0]) == 2


def test_what_came_before_an_error_is_delivered_first_and_the_error_is_classified(line: Line) -> None:
    fields = b"SFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"
    line.server.sendall(copy_data(pg.begin(1, 1)) + b"E" + struct.pack("!I", len(fields) + 4) + fields)
    frames, _ = line.transport.receive()
    assert len(frames) == 1
    with pytest.raises(RunnelError, match="administrator command") as caught:
        line.transport.receive()
    assert caught.value.kind is Kind.TRANSIENT


def test_a_closed_connection_is_an_error_that_heals(line: Line) -> None:
    line.server.close()
    with pytest.raises(RunnelError, match="closed the connection") as caught:
        line.transport.receive()
    assert caught.value.kind is Kind.TRANSIENT


def test_the_end_of_the_copy_is_an_error_that_heals(line: Line) -> None:
    line.server.sendall(b"c" + struct.pack("!I", 4))
    with pytest.raises(RunnelError, match="ended the stream"):
        line.transport.receive()


@pytest.mark.parametrize(
    "raw",
    [
        b"H" + struct.pack("!I", 8) + b"\0\0\0\0",
        b"HTTP/1.1 502 Bad Gateway\r\n",
        b"d" + struct.pack("!I", 2),
        b"d" + struct.pack("!I", 4),
        b"d" + struct.pack("!I", 0xFFFFFFFF),
        b"E" + struct.pack("!I", 0x7FFFFFFF),
        copy_data(b"x what is this"),
        copy_data(pg.frame(b"Z a pgoutput message of the future")),
    ],
    ids=["type", "no Postgres", "short", "empty", "long", "long error", "copy data", "pgoutput"],
)
@pytest.mark.parametrize("before", [b"", copy_data(pg.begin(1, 1))], ids=["at once", "later"])
def test_what_has_no_place_in_the_stream_is_refused_and_not_waited_for(
    line: Line, before: bytes, raw: bytes
) -> None:
    line.server.sendall(before + raw)
    if before and b"Z a pgoutput" not in raw:  # that one is of the same burst
        assert len(line.transport.receive()[0]) == 1
    with pytest.raises(RunnelError, match="type") as caught:
        line.transport.receive()
    assert caught.value.kind is Kind.REFUSED
    assert caught.value.hint


def test_a_server_that_answers_the_start_with_something_else_is_refused(line: Line) -> None:
    line.server.sendall(b"T" + struct.pack("!I", 6) + b"\0\0")
    with pytest.raises(RunnelError, match="'T'") as caught:
        line.transport.start("START_REPLICATION …")
    assert caught.value.kind is Kind.REFUSED


def test_what_the_socket_does_not_take_is_sent_later_in_order(line: Line) -> None:
    payloads = [bytes([number % 256]) * 1000 for number in range(2000)]
    for payload in payloads:
        line.transport.send(payload)
    expected = b"".join(map(copy_data, payloads))
    got = b""
    while len(got) < len(expected):
        got += line.server.recv(1 << 20)
        line.transport.receive()
    assert got == expected


def test_starting_passes_on_what_the_server_says(line: Line) -> None:
    fields = b'SERROR\0C42704\0Mreplication slot "x" does not exist\0\0'
    line.server.sendall(b"E" + struct.pack("!I", len(fields) + 4) + fields)
    with pytest.raises(RunnelError, match="does not exist") as caught:
        line.transport.start("START_REPLICATION …")
    assert caught.value.kind is Kind.REFUSED
    assert "runnel init" in caught.value.hint
