"""A small pgoutput encoder and an in-memory chunk: what tests of decoding feed on.

`Transaction`s are described with plain values; `encode` writes the frames a server would send, and
`expected` the JSON lines that must come out, by a slow way that shares no code with the package.
"""

from __future__ import annotations

import base64
import json
import random
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from runnel.changes.relation import Column, Relation
from runnel.log.api import PAD, ChunkHeader, Lineage, OpenTransaction, PieceData
from runnel.postgres.lsn import Lsn
from runnel.postgres.types import ColumnType, Shape, builtin

EPOCH_2000 = 946_684_800_000_000


@dataclass(frozen=True)
class Value:
    """Postgres' text of a value and the JSON it must become."""

    text: str
    json: str


class Unchanged:
    """A value that the WAL leaves out."""


UNCHANGED = Unchanged()
Row = Sequence["Value | Unchanged | None"]


@dataclass
class Change:
    op: str
    """I, U or D; T truncates `relations`; M is a message; R announces a version of `relation`."""
    relation: Relation | None = None
    new: Row | None = None
    old: Row | None = None
    full: bool = False
    relations: Sequence[Relation] = ()
    prefix: str = ""
    content: bytes = b""


@dataclass
class Transaction:
    lsn: int
    xid: int
    time: int
    changes: list[Change] = field(default_factory=list)
    lone: bool = False
    """A non-transactional message: `changes` has only it."""


def type_of(oid: int) -> ColumnType:
    known = builtin(oid)
    assert known is not None
    return known


def relation(
    oid: int,
    name: str,
    columns: Sequence[tuple[str, int]],
    key: Sequence[int] = (0,),
    identity: str = "d",
    schema: str = "public",
) -> Relation:
    made = tuple(
        Column(label, type_of(kind), -1, identity == "f" or number in key)
        for number, (label, kind) in enumerate(columns)
    )
    return Relation(oid, schema, name, identity, made, tuple(key))


def _string(text: str) -> bytes:
    return text.encode() + b"\0"


def _tuple(row: Row) -> bytes:
    out = [struct.pack(">H", len(row))]
    for value in row:
        if value is None:
            out.append(b"n")
        elif isinstance(value, Unchanged):
            out.append(b"u")
        else:
            data = value.text.encode()
            out.append(b"t" + struct.pack(">I", len(data)) + data)
    return b"".join(out)


def _message(change: Change, xid: int | None, lsn: int, transactional: bool) -> bytes:
    """One message; `xid` is the sub-transaction's, for the streamed form."""
    sub = b"" if xid is None else struct.pack(">I", xid)
    op = change.op.encode() + sub
    of = change.relation
    if change.op == "M":
        head = struct.pack(">BQ", int(transactional), lsn) + _string(change.prefix)
        return op + head + struct.pack(">I", len(change.content)) + change.content
    if change.op == "T":
        oids = b"".join(struct.pack(">I", one.oid) for one in change.relations)
        return op + struct.pack(">IB", len(change.relations), 0) + oids
    assert of is not None
    if change.op == "R":
        columns = b"".join(
            struct.pack(">B", c.identity) + _string(c.name) + struct.pack(">Ii", c.type.oid, c.typmod)
            for c in of.columns
        )
        names = struct.pack(">I", of.oid) + _string(of.schema) + _string(of.name)
        return op + names + of.identity.encode() + struct.pack(">H", len(of.columns)) + columns
    out = op + struct.pack(">I", of.oid)
    if change.old is not None:
        out += (b"O" if change.full else b"K") + _tuple(change.old)
    if change.new is not None:
        out += b"N" + _tuple(change.new)
    return out


def _frame(lsn: int, sent: int, message: bytes) -> bytes:
    return b"w" + struct.pack(">QQq", lsn, lsn, sent - EPOCH_2000) + message


@dataclass
class Encoded:
    frames: list[bytes] = field(default_factory=list)
    changed: list[tuple[int, Relation]] = field(default_factory=list)


def encode(transactions: Sequence[Transaction], *, streamed: bool = False) -> Encoded:
    out = Encoded()
    for one in transactions:

        def add(message: bytes, one: Transaction = one) -> None:
            out.frames.append(_frame(one.lsn - 1, one.time, message))

        if not one.lone and not streamed:
            add(b"B" + struct.pack(">QqI", one.lsn, one.time - EPOCH_2000, one.xid))
            add(b"O" + struct.pack(">Q", 7) + _string("origin"))
        for number, change in enumerate(one.changes):
            if change.op == "R" and change.relation is not None:
                out.changed.append((len(out.frames), change.relation))
            sub = one.xid + number % 3 if streamed else None
            add(_message(change, sub, one.lsn, not one.lone))
        if not one.lone and not streamed:
            add(b"C" + struct.pack(">BQQq", 0, one.lsn, one.lsn + 8, one.time - EPOCH_2000))
    return out


class MemoryChunk:
    """A chunk reader over frames in memory; pieces end where `borders` (frame numbers) say. The
    buffer is used again and again, as the log does it."""

    def __init__(
        self,
        frames: Sequence[bytes],
        relations: Sequence[Relation] = (),
        changed: Sequence[tuple[int, Relation]] = (),
        borders: Sequence[int] = (),
        *,
        pad: int = PAD,
        slack: int = 4096,
        **header: Any,
    ) -> None:
        lineage = Lineage("7", 1, "runnel_1f2e3d4c")
        self.header = ChunkHeader(
            lineage, 1, Lsn(16), Lsn(1 << 40), relations=tuple(relations), changed=tuple(changed), **header
        )
        self.frames = list(frames)
        self.borders = sorted({0, len(self.frames), *(b for b in borders if b < len(self.frames))})
        largest = max((sum(map(len, piece)) for piece in self._split()), default=0)
        self.buffer = np.full(pad + largest + slack, 0xEE, np.uint8)
        self.pad = pad

    def _split(self) -> Iterator[list[bytes]]:
        for start, end in zip(self.borders, self.borders[1:], strict=False):
            yield self.frames[start:end]

    def pieces(self) -> Iterator[PieceData]:
        first = 0
        for piece in self._split():
            data = b"".join(piece)
            self.buffer[:] = 0xEE
            self.buffer[self.pad : self.pad + len(data)] = np.frombuffer(data, np.uint8)
            offsets = np.cumsum([self.pad, *map(len, piece)]).astype(np.int64)
            yield PieceData(self.buffer, offsets, first)
            first += len(piece)

    def close(self) -> None:
        pass


def part_of(transaction: Transaction) -> OpenTransaction:
    return OpenTransaction(
        transaction.xid, Lsn(transaction.lsn), Lsn(transaction.lsn + 8), transaction.time
    )


# -- what must come out ------------------------------------------------------------------------------


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _object(of: Relation, row: Row, columns: Sequence[int]) -> str:
    members = []
    for column in columns:
        value = row[column]
        assert not isinstance(value, Unchanged)
        members.append(_text(of.columns[column].name) + ":" + ("null" if value is None else value.json))
    return "{" + ",".join(members) + "}"


def _row_members(change: Change) -> str:
    of = change.relation
    assert of is not None
    everything = list(range(len(of.columns)))
    has_old = everything if change.full else [k for k in everything if of.columns[k].identity]
    new = None
    if change.new is not None:
        new = list(change.new)
        if change.old is not None:
            for k in has_old:
                if isinstance(new[k], Unchanged):
                    new[k] = change.old[k]
    out = ""
    source = new if new is not None else change.old
    assert source is not None
    key = [k for k in of.key if not isinstance(source[k], Unchanged)]
    if key:
        out += ',"key":' + _object(of, source, key)
    if change.old is not None:
        out += ',"before":' + _object(of, change.old, has_old)
    if new is not None:
        known = [k for k in everything if not isinstance(new[k], Unchanged)]
        out += ',"after":' + _object(of, new, known)
        if len(known) < len(everything):
            names = [_text(of.columns[k].name) for k in everything if k not in known]
            out += ',"unchanged":[' + ",".join(names) + "]"
    return out


_OPS = {"I": "insert", "U": "update", "D": "delete"}


def expected(transactions: Sequence[Transaction], *, after: int = 0, messages: bool = True) -> list[str]:
    out: list[str] = []
    for one in transactions:
        seq = 0
        time = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=one.time)).isoformat(
            timespec="microseconds"
        )
        for change in one.changes:

            def stamps(seq: int, one: Transaction = one, time: str = time) -> str:
                xid = "" if one.lone else f',"xid":{one.xid}'
                clock = time.replace("+00:00", "Z")
                return (
                    f'"lsn":"{one.lsn >> 32:X}/{one.lsn & 0xFFFFFFFF:X}","seq":{seq}{xid},"time":"{clock}"'
                )

            if change.op == "R":
                continue
            tables = change.relations if change.op == "T" else [change.relation]
            for of in tables:
                if change.op == "M":
                    try:
                        content = _text(change.content.decode())
                    except UnicodeDecodeError:
                        coded = base64.b64encode(change.content).decode()
                        content = _text(coded) + ',"encoding":"base64"'
                    prefix = _text(change.prefix)
                    line = f'{{"op":"message",{stamps(seq)},"prefix":{prefix},"content":{content}}}'
                else:
                    assert of is not None
                    names = f'"schema":{_text(of.schema)},"table":{_text(of.name)}'
                    op = _OPS.get(change.op, "truncate")
                    rest = _row_members(change) if change.op in _OPS else ""
                    line = f'{{"op":"{op}",{names},{stamps(seq)}{rest}}}'
                seq += 1
                hidden = change.op == "M" and (change.prefix == "runnel" or not messages)
                if one.lsn >= after and not hidden:
                    out.append(line)
    return out


# -- random values -----------------------------------------------------------------------------------

_STRINGS = (
    "",
    "plain",
    'say "hi"',
    "back\\slash",
    "a\nb\tc\rd",
    "\b\f\x01\x1f\x7f",
    "grüße, 世界 🎈",
    "NULL",
    "{}",
    "a,b",
    "\u2028",
)


def _scalar(kind: ColumnType, rng: random.Random) -> Value:
    if kind.shape is Shape.NUMBER:
        if kind.name in ("float8", "numeric") and rng.random() < 0.3:
            text = rng.choice(("NaN", "Infinity", "-Infinity"))
            return Value(text, f'"{text}"')
        text = str(rng.randint(-(10**18), 10**18))
        if kind.name in ("float8", "numeric"):
            text = rng.choice((text + ".50", "1e+300", "0.1", "-0", "1.5e-07"))
        return Value(text, text)
    if kind.shape is Shape.BOOLEAN:
        flag = rng.random() < 0.5
        return Value("t" if flag else "f", "true" if flag else "false")
    if kind.shape is Shape.JSON:
        text = json.dumps({"a": rng.choice(_STRINGS), "b": [1, None, rng.random()]}, ensure_ascii=False)
        if kind.name == "json" and rng.random() < 0.5:
            text = "{\n" + text[1:-1] + "\r\n}"
        return Value(text, text.replace("\n", " ").replace("\r", " "))
    if kind.name == "timestamptz":
        text = rng.choice(("2026-11-18 06:43:00.5+00", "infinity", "0044-03-15 12:00:00+00 BC"))
        return Value(text, _text(text))
    text = rng.choice(_STRINGS) + rng.choice(("", "x" * rng.randint(0, 40)))
    return Value(text, _text(text))


def _array(kind: ColumnType, rng: random.Random) -> Value:
    element, delimiter = kind.element, kind.delimiter
    assert element is not None

    def item(depth: int) -> Value:
        if depth:
            items = [item(depth - 1) for _ in range(2)]
        elif rng.random() < 0.2:
            return Value("NULL", "null")
        else:
            value = _scalar(element, rng)
            special = set('{}"\\ \n\t\r\f\v' + delimiter)
            if value.text in ("", "NULL") or special & set(value.text):
                escaped = value.text.replace("\\", "\\\\").replace('"', '\\"')
                return Value(f'"{escaped}"', value.json)
            return value
        text = "{" + delimiter.join(one.text for one in items) + "}"
        return Value(text, "[" + ",".join(one.json for one in items) + "]")

    shape = rng.random()
    if shape < 0.1:
        return Value("{}", "[]")
    value = item(rng.choice((1, 1, 1, 2, 3)))
    if shape < 0.2:
        text = "[2:3]=" + value.text
        return Value(text, _text(text))
    return value


def random_value(kind: ColumnType, rng: random.Random) -> Value:
    return _array(kind, rng) if kind.shape is Shape.ARRAY else _scalar(kind, rng)
