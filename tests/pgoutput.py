"""pgoutput as a server writes it: frames for tests, built field by field."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from runnel.changes.relation import Column, Relation
from runnel.postgres.types import ColumnType, Shape

EPOCH = 946_684_800_000_000
TEXT = 25


def frame(message: bytes, lsn: int = 0) -> bytes:
    """XLogData: the head that every frame keeps."""
    return struct.pack("!cQQq", b"w", lsn, lsn, 0) + message


def keepalive(wal_end: int, *, reply: bool = False) -> bytes:
    return struct.pack("!cQqB", b"k", wal_end, 0, reply)


def _xid(xid: int | None) -> bytes:
    return b"" if xid is None else struct.pack("!I", xid)


def begin(lsn: int, xid: int, time: int = EPOCH) -> bytes:
    return frame(struct.pack("!cQqI", b"B", lsn, time - EPOCH, xid))


def commit(lsn: int, end: int, time: int = EPOCH) -> bytes:
    return frame(struct.pack("!cBQQq", b"C", 0, lsn, end, time - EPOCH))


def values(*texts: str | None) -> bytes:
    out = struct.pack("!H", len(texts))
    for text in texts:
        raw = None if text is None else text.encode()
        out += b"n" if raw is None else b"t" + struct.pack("!I", len(raw)) + raw
    return out


def insert(oid: int, *texts: str | None, xid: int | None = None) -> bytes:
    return frame(b"I" + _xid(xid) + struct.pack("!Ic", oid, b"N") + values(*texts))


def truncate(*oids: int, xid: int | None = None) -> bytes:
    return frame(b"T" + _xid(xid) + struct.pack(f"!IB{len(oids)}I", len(oids), 0, *oids))


def message(lsn: int, prefix: str, content: bytes, *, transactional: bool, xid: int | None = None) -> bytes:
    head = b"M" + _xid(xid) + struct.pack("!BQ", transactional, lsn)
    return frame(head + prefix.encode() + b"\0" + struct.pack("!I", len(content)) + content)


def relation(
    oid: int,
    name: str,
    columns: Sequence[str],
    *,
    schema: str = "public",
    identity: str = "d",
    key: Sequence[str] = (),
    xid: int | None = None,
) -> bytes:
    out = b"R" + _xid(xid) + struct.pack("!I", oid) + schema.encode() + b"\0" + name.encode() + b"\0"
    out += identity.encode() + struct.pack("!H", len(columns))
    for column in columns:
        out += struct.pack("!B", column in key) + column.encode() + b"\0" + struct.pack("!Ii", TEXT, -1)
    return frame(out)


def type_(oid: int, schema: str, name: str, *, xid: int | None = None) -> bytes:
    head = b"Y" + _xid(xid) + struct.pack("!I", oid)
    return frame(head + schema.encode() + b"\0" + name.encode() + b"\0")


def origin(lsn: int, name: str) -> bytes:
    return frame(struct.pack("!cQ", b"O", lsn) + name.encode() + b"\0")


def stream_start(xid: int, *, first: bool) -> bytes:
    return frame(struct.pack("!cIB", b"S", xid, first))


def stream_stop() -> bytes:
    return frame(b"E")


def stream_commit(xid: int, lsn: int, end: int, time: int = EPOCH) -> bytes:
    return frame(struct.pack("!cIBQQq", b"c", xid, 0, lsn, end, time - EPOCH))


def stream_abort(xid: int, subxid: int, lsn: int | None = None) -> bytes:
    """With an LSN: the form of protocol 4 with streaming=parallel."""
    more = b"" if lsn is None else struct.pack("!Qq", lsn, 0)
    return frame(struct.pack("!cII", b"A", xid, subxid) + more)


def described(oid: int, name: str, columns: Sequence[str], *, key: Sequence[str] = ()) -> Relation:
    """What the catalogue makes of `relation` with the same arguments."""
    text = ColumnType(TEXT, "text", Shape.TEXT)
    return Relation(
        oid,
        "public",
        name,
        "d",
        tuple(Column(column, text, -1, column in key) for column in columns),
        tuple(i for i, column in enumerate(columns) if column in key),
    )
