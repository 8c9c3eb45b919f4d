"""pgoutput and the streaming replication sub-protocol, as bytes. No I/O.

What comes in: the CopyData payloads of one burst (XLogData 'w' and keepalives 'k'), a list of bytes.
What goes out: `Frames`, the XLogData payloads back to back with type and place of each in columns, so
that capture works on a burst with numpy; parsers for the few messages it must understand one by one;
the status update it answers with.

What must hold: nothing here loops over rows or transactions. A frame keeps its 25-byte head; LSNs and
lengths are big-endian; times leave as microseconds since 1970.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import Refused
from ..log.api import FRAME_HEAD
from ..postgres.lsn import Lsn

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

POSTGRES_EPOCH = 946_684_800_000_000
"""Microseconds from 1970 to 2000, where Postgres counts from."""

XLOG_DATA = ord("w")
KEEPALIVE = ord("k")

BEGIN = ord("B")
COMMIT = ord("C")
INSERT = ord("I")
UPDATE = ord("U")
DELETE = ord("D")
TRUNCATE = ord("T")
MESSAGE = ord("M")
RELATION = ord("R")
TYPE = ord("Y")
ORIGIN = ord("O")
STREAM_START = ord("S")
STREAM_STOP = ord("E")
STREAM_COMMIT = ord("c")
STREAM_ABORT = ord("A")

_KNOWN = (
    BEGIN,
    COMMIT,
    INSERT,
    UPDATE,
    DELETE,
    TRUNCATE,
    MESSAGE,
    RELATION,
    TYPE,
    ORIGIN,
    STREAM_START,
    STREAM_STOP,
    STREAM_COMMIT,
    STREAM_ABORT,
)


def _table(*kinds: int) -> npt.NDArray[np.bool_]:
    table = np.zeros(256, np.bool_)
    table[list(kinds)] = True
    return table


IS_ROW = _table(INSERT, UPDATE, DELETE)
IS_STREAM_CONTROL = _table(STREAM_START, STREAM_STOP, STREAM_COMMIT, STREAM_ABORT)
IS_NOTABLE = _table(TRUNCATE, MESSAGE, RELATION, TYPE)
"""Frames capture must read one by one."""
IS_UNKNOWN = ~_table(*_KNOWN)

_U64 = struct.Struct("!Q")
_I64 = struct.Struct("!q")
_KEEPALIVE = struct.Struct("!cQqB")
_STATUS = struct.Struct("!cQQQqB")
_BEGIN = struct.Struct("!QqI")
_COMMIT = struct.Struct("!BQQq")


@dataclass(frozen=True, slots=True)
class Keepalive:
    wal_end: Lsn
    """Everything before it that concerns us has been sent."""
    time: int
    reply: bool


@dataclass(frozen=True, slots=True)
class Frames:
    """XLogData payloads back to back. `start` has one number more than there are frames."""

    data: memoryview
    start: I64
    length: I64
    kind: U8

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def bytes(self) -> U8:
        return np.frombuffer(self.data, np.uint8)

    def slice(self, first: int, last: int) -> Frames:
        """Frames first … last-1, without a copy."""
        begin, end = int(self.start[first]), int(self.start[last])
        return Frames(
            self.data[begin:end],
            self.start[first : last + 1] - begin,
            self.length[first:last],
            self.kind[first:last],
        )

    def without(self, dropped: npt.NDArray[np.bool_]) -> Frames:
        keep = ~dropped
        data = self.bytes[np.repeat(keep, self.length)]
        return frames_of(memoryview(data.tobytes()), self.length[keep])

    def message(self, number: int) -> memoryview:
        """The pgoutput message of one frame, its head cut off."""
        return self.data[int(self.start[number]) + FRAME_HEAD : int(self.start[number + 1])]

    def sent(self, number: int) -> int:
        """When the server sent this frame, by its own clock."""
        (time,) = _I64.unpack_from(self.data, int(self.start[number]) + FRAME_HEAD - 8)
        return int(time) + POSTGRES_EPOCH

    def u64(self, numbers: I64, offset: int) -> npt.NDArray[np.uint64]:
        """The big-endian 8 bytes at `offset` of the messages of these frames."""
        view: npt.NDArray[np.uint64] = np.ndarray((max(len(self.data) - 7, 0),), ">u8", self.data, 0, (1,))
        return view[self.start[numbers] + (FRAME_HEAD + offset)].astype(np.uint64)

    def u32(self, numbers: I64, offset: int) -> npt.NDArray[np.uint32]:
        view: npt.NDArray[np.uint32] = np.ndarray((max(len(self.data) - 3, 0),), ">u4", self.data, 0, (1,))
        return view[self.start[numbers] + (FRAME_HEAD + offset)].astype(np.uint32)


def frames_of(data: memoryview, length: I64) -> Frames:
    start = np.zeros(len(length) + 1, np.int64)
    np.cumsum(length, out=start[1:])
    kind = np.frombuffer(data, np.uint8)[start[:-1] + FRAME_HEAD]
    return Frames(data, start, length, kind)


def split(messages: Sequence[bytes]) -> tuple[Frames, list[Keepalive]]:
    """A burst: its XLogData frames and its keepalives."""
    keepalives: list[Keepalive] = []
    data = b"".join(messages)
    length = np.fromiter(map(len, messages), np.int64, len(messages))
    start = np.cumsum(length) - length
    foreign = np.flatnonzero(np.frombuffer(data, np.uint8)[start] != XLOG_DATA)
    if len(foreign):  # a few a minute while the stream flows: the second join does not matter
        for number in foreign.tolist():
            keepalives.append(parse_keepalive(messages[number]))
        gone = set(foreign.tolist())
        rest = [message for number, message in enumerate(messages) if number not in gone]
        data = b"".join(rest)
        length = np.delete(length, foreign)
    return known(frames_of(memoryview(data), length)), keepalives


def known(frames: Frames) -> Frames:
    """The same, or refused: what is not understood may not be passed over."""
    unknown = IS_UNKNOWN[frames.kind]
    if unknown.any():
        kind = chr(int(frames.kind[int(np.argmax(unknown))]))
        raise Refused(
            f"the server sent a pgoutput message of type {kind!r} that this Runnel does not know",
            hint="use a Runnel version that supports this server version",
        )
    return frames


def parse_keepalive(message: bytes) -> Keepalive:
    if len(message) != _KEEPALIVE.size or message[0] != KEEPALIVE:
        raise Refused(
            f"the replication stream holds a message of type {chr(message[0])!r} "
            f"and {len(message)} bytes that is neither data nor a keepalive",
            hint="check that the URL names a PostgreSQL server and no proxy that changes the protocol",
        )
    _, wal_end, time, reply = _KEEPALIVE.unpack(message)
    return Keepalive(Lsn(wal_end), time + POSTGRES_EPOCH, bool(reply))


def status_update(write: int, flush: int, now: int, *, reply: bool = False) -> bytes:
    """`now` in microseconds since 1970. `flush` is what the slot may forget."""
    return _STATUS.pack(b"r", write, flush, flush, now - POSTGRES_EPOCH, reply)


# One message at a time, for the few that matter. `streamed`: a 4-byte xid follows the type byte.


@dataclass(frozen=True, slots=True)
class Begin:
    lsn: Lsn
    time: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    lsn: Lsn
    end: Lsn
    time: int


@dataclass(frozen=True, slots=True)
class RelationColumn:
    name: str
    type_oid: int
    typmod: int
    identity: bool


@dataclass(frozen=True, slots=True)
class RelationMessage:
    oid: int
    schema: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class TypeMessage:
    oid: int
    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    transactional: bool
    lsn: Lsn
    prefix: str
    content: bytes


@dataclass(frozen=True, slots=True)
class StreamStart:
    xid: int
    first: bool


@dataclass(frozen=True, slots=True)
class StreamCommit:
    xid: int
    lsn: Lsn
    end: Lsn
    time: int


@dataclass(frozen=True, slots=True)
class StreamAbort:
    xid: int
    subxid: int


def parse_begin(message: memoryview) -> Begin:
    lsn, time, xid = _BEGIN.unpack_from(message, 1)
    return Begin(Lsn(lsn), time + POSTGRES_EPOCH, xid)


def parse_commit(message: memoryview) -> Commit:
    _, lsn, end, time = _COMMIT.unpack_from(message, 1)
    return Commit(Lsn(lsn), Lsn(end), time + POSTGRES_EPOCH)


END_LSN = 2
"""Where the LSN stands in what ends something: a Commit, or a message outside any transaction."""


def parse_relation(message: memoryview, *, streamed: bool = False) -> RelationMessage:
    raw = bytes(message)
    at = 5 if streamed else 1
    (oid,) = struct.unpack_from("!I", raw, at)
    schema, at = _text(raw, at + 4)
    name, at = _text(raw, at)
    identity = chr(raw[at])
    (count,) = struct.unpack_from("!H", raw, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        flags = raw[at]
        column, at = _text(raw, at + 1)
        type_oid, typmod = struct.unpack_from("!Ii", raw, at)
        at += 8
        columns.append(RelationColumn(column, type_oid, typmod, bool(flags & 1)))
    # pgoutput leaves the schema of the system catalogue empty.
    return RelationMessage(oid, schema or "pg_catalog", name, identity, tuple(columns))


def parse_type(message: memoryview, *, streamed: bool = False) -> TypeMessage:
    raw = bytes(message)
    at = 5 if streamed else 1
    (oid,) = struct.unpack_from("!I", raw, at)
    schema, at = _text(raw, at + 4)
    name, at = _text(raw, at)
    return TypeMessage(oid, schema or "pg_catalog", name)


def parse_truncate(message: memoryview, *, streamed: bool = False) -> tuple[int, ...]:
    """The tables' oids."""
    at = 5 if streamed else 1
    (count,) = struct.unpack_from("!I", message, at)
    return struct.unpack_from(f"!{count}I", message, at + 5)


def parse_message(message: memoryview, *, streamed: bool = False) -> LogicalMessage:
    raw = bytes(message)
    at = 5 if streamed else 1
    flags = raw[at]
    (lsn,) = _U64.unpack_from(raw, at + 1)
    prefix, at = _text(raw, at + 9)
    (length,) = struct.unpack_from("!I", raw, at)
    return LogicalMessage(bool(flags & 1), Lsn(lsn), prefix, raw[at + 4 : at + 4 + length])


def is_transactional(message: memoryview) -> bool:
    """Of a logical message that is not inside a stream block."""
    return bool(message[1] & 1)


def message_lsn(message: memoryview) -> Lsn:
    return Lsn(_U64.unpack_from(message, 2)[0])


def parse_stream_start(message: memoryview) -> StreamStart:
    xid, first = struct.unpack_from("!IB", message, 1)
    return StreamStart(xid, bool(first))


def parse_stream_commit(message: memoryview) -> StreamCommit:
    xid, _, lsn, end, time = struct.unpack_from("!IBQQq", message, 1)
    return StreamCommit(xid, Lsn(lsn), Lsn(end), time + POSTGRES_EPOCH)


def parse_stream_abort(message: memoryview) -> StreamAbort:
    # Protocol 4 with streaming=parallel adds the abort's LSN and time, which nobody needs here.
    xid, subxid = struct.unpack_from("!II", message, 1)
    return StreamAbort(xid, subxid)


def _text(raw: bytes, at: int) -> tuple[str, int]:
    end = raw.index(0, at)
    return raw[at:end].decode(), end + 1
