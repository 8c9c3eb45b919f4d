"""A server in miniature writes random histories; whatever is cut, lost and sent again, the log tells them
once and in order, and every row decodes under the columns it was written with."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

import pgoutput as pg
from capturing import Change, MemoryLog, changes, cutter
from runnel.capture.protocol import split

TABLES = (1, 2, 65_537)  # the last shares its low 16 bits with the first

KINDS = ("plain",) * 3 + ("streamed",) * 2 + ("empty", "message", "rolled back")


@dataclass
class Row:
    table: int
    width: int
    subxids: tuple[int, ...] = ()
    """The sub-transactions it stands in, outermost first."""
    text: str = ""


@dataclass
class Abort:
    subxid: int


@dataclass
class Unit:
    """What commits at `lsn`: a transaction, or a message outside any."""

    kind: str
    lsn: int
    xid: int
    steps: list[Row | Abort] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.lsn + 1 if self.kind == "message" else self.lsn + 5

    def survivors(self) -> list[Row]:
        kept: list[Row] = []
        for step in self.steps:
            if isinstance(step, Row):
                kept.append(step)
            else:
                kept = [row for row in kept if step.subxid not in row.subxids]
        return kept


def history(rng: random.Random) -> list[Unit]:
    width = dict.fromkeys(TABLES, 1)
    units = []
    lsn, xid = 100, 1000
    for _ in range(rng.randint(1, 12)):
        lsn += rng.randint(6, 40)
        xid += 100
        kind = rng.choice(KINDS)
        unit = Unit(kind, lsn, xid)
        if kind in ("plain", "streamed", "rolled back"):
            now = dict(width)
            nested: list[int] = []
            subxid = xid
            for _ in range(rng.randint(1, 10)):
                choice = rng.random()
                table = rng.choice(TABLES)
                if choice < 0.12 and not nested:
                    now[table] += 1
                elif choice < 0.3 and kind != "plain":
                    subxid += 1
                    nested.append(subxid)
                elif choice < 0.4 and nested:
                    nested.pop()
                elif choice < 0.5 and nested:
                    unit.steps.append(Abort(nested.pop()))
                else:
                    row = Row(table, now[table], tuple(nested), f"{xid}.{len(unit.steps)}")
                    unit.steps.append(row)
            if kind != "rolled back":
                width = now
            if not any(isinstance(step, Row) for step in unit.steps):
                unit.kind = "empty"
        units.append(unit)
    return units


def relation(row: Row, xid: int | None) -> bytes:
    return pg.relation(row.table, f"t{row.table}", [f"c{i}" for i in range(row.width)], xid=xid)


def insert(row: Row, xid: int | None) -> bytes:
    return pg.insert(row.table, row.text, *["v"] * (row.width - 1), xid=xid)


def connection(units: list[Unit], start: int, rng: random.Random) -> Iterator[bytes]:
    """What the server sends from `start` on, on a connection that knows nothing yet."""
    sent: dict[int, int] = {}
    pending = [unit for unit in units if unit.lsn >= start]
    blocks: dict[int, list[bytes]] = {}
    known: dict[int, dict[int, int]] = {}
    for unit in pending:
        if unit.kind in ("streamed", "rolled back"):
            blocks[unit.xid], known[unit.xid] = streamed(unit, rng)
    begun: set[int] = set()
    for number, unit in enumerate(pending):
        # some blocks of transactions that end later come before
        for later in pending[number:]:
            if later.xid in blocks and (later is unit or rng.random() < 0.4):
                count = len(blocks[later.xid]) if later is unit else rng.randint(0, 2)
                for block in blocks[later.xid][:count]:
                    if block[25:26] != b"A":
                        yield pg.stream_start(later.xid, first=later.xid not in begun)
                        begun.add(later.xid)
                        yield from unpack(block)
                        yield pg.stream_stop()
                    else:
                        yield block
                del blocks[later.xid][:count]
        if unit.kind == "empty":
            yield pg.begin(unit.lsn, unit.xid)
            yield pg.commit(unit.lsn, unit.end)
        elif unit.kind == "message":
            yield pg.message(unit.lsn, "app", f"m{unit.lsn}".encode(), transactional=False)
        elif unit.kind == "plain":
            yield pg.begin(unit.lsn, unit.xid)
            for row in unit.survivors():
                if sent.get(row.table) != row.width:
                    yield relation(row, None)
                    sent[row.table] = row.width
                yield insert(row, None)
            yield pg.commit(unit.lsn, unit.end)
        elif unit.kind == "streamed":
            yield pg.stream_commit(unit.xid, unit.lsn, unit.end)
            sent.update(known[unit.xid])
        else:
            yield pg.stream_abort(unit.xid, unit.xid)
        yield pg.keepalive(unit.end)


_packed: dict[bytes, list[bytes]] = {}


def streamed(unit: Unit, rng: random.Random) -> tuple[list[bytes], dict[int, int]]:
    """Blocks (packed messages) and aborts, as the server would send them one after the other."""
    out: list[bytes] = []
    block: list[bytes] = []
    sent: dict[int, int] = {}

    def close() -> None:
        if block:
            key = pg.frame(f"#{unit.xid}.{len(_packed)}".encode())
            _packed[key] = list(block)
            out.append(key)
            block.clear()

    seen: set[int] = set()
    for step in unit.steps:
        if isinstance(step, Abort):
            close()
            # children first, as the abort record lists them, then itself
            for subxid in sorted(seen):
                inner = [row for row in unit.steps if isinstance(row, Row) and subxid in row.subxids]
                if any(step.subxid in row.subxids for row in inner) and subxid > step.subxid:
                    out.append(pg.stream_abort(unit.xid, subxid))
            if step.subxid in seen:
                out.append(pg.stream_abort(unit.xid, step.subxid))
            continue
        xid = step.subxids[-1] if step.subxids else unit.xid
        seen.add(xid)
        if sent.get(step.table) != step.width:
            block.append(relation(step, xid))
            sent[step.table] = step.width
        block.append(insert(step, xid))
        if rng.random() < 0.3:
            close()
    close()
    return out, sent


def unpack(block: bytes) -> list[bytes]:
    return _packed[block]


def expected(units: list[Unit]) -> list[Change]:
    out = []
    for unit in units:
        if unit.kind == "message":
            out.append(Change(unit.lsn, 0, f"m{unit.lsn}", 0))
        elif unit.kind in ("plain", "streamed"):
            out += [Change(unit.lsn, i, row.text, row.width) for i, row in enumerate(unit.survivors())]
    return out


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32))
def test_any_history_is_told_once_and_in_order(seed: int) -> None:
    rng = random.Random(seed)
    units = history(rng)
    _packed.clear()
    with tempfile.TemporaryDirectory() as place:
        log = MemoryLog()
        c = cutter(log, Path(place), end=50, chunk_bytes=rng.choice([150, 600, 5000, 1 << 20]))
        for life in range(rng.randint(1, 4)):
            told = 0  # what an earlier connection was told says nothing of this one
            # an older server sends again what the log has; a newer one does not
            start = c.end if rng.random() < 0.5 else 0
            messages = list(connection(units, start, rng))
            if life < 3 and rng.random() < 0.6:
                messages = messages[: rng.randint(0, len(messages))]
            at = 0
            while at < len(messages):
                size = rng.randint(1, 12)
                frames, keepalives = split(messages[at : at + size])
                c.feed(frames, 0.0)
                at += size
                told = max([told, *(k.wal_end for k in keepalives)])
                if rng.random() < 0.3:
                    c.cut()
                if c.idle and rng.random() < 0.2:
                    c.advance(type(c.end)(told))
            if rng.random() < 0.5:
                c.cut()
            c.disconnected()
        frames, _ = split(list(connection(units, c.end, rng)))
        c.feed(frames, 0.0)
        c.cut()
        assert c.idle
        assert list(changes(log)) == expected(units)
        assert not log.open_writers
        assert not list(Path(place).glob("spool/*"))
