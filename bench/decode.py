"""CPU per row of decoding and of the default JSON, in memory: `python bench/decode.py [rows]`.

The loads: inserts of one ten-column table in transactions of 100; the same rows one a transaction;
inserts, updates (a fifth with their old key, a fifth with an unchanged value) and deletes over ten
tables; and over a thousand tables inserts in transactions of 100 on one table each, single rows, and
the mixed changes, also with four to ten columns that no other table has. A row must cost about the
same in all of them. Each figure is the best of several passes, in µs of CPU a row, pieces of 1 MB as
the log has them.
"""

from __future__ import annotations

import random
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from runnel.changes.decode import decode
from runnel.changes.relation import Column, Relation
from runnel.log.api import PAD, ChunkHeader, Lineage, PieceData
from runnel.marshal.json import lines
from runnel.postgres.lsn import Lsn
from runnel.postgres.types import builtin

PIECE = 1 << 20
COLUMNS = (
    ("id", 20),
    ("account_id", 23),
    ("name", 25),
    ("email", 1043),
    ("amount", 1700),
    ("score", 701),
    ("active", 16),
    ("ref", 2950),
    ("created_at", 1184),
    ("note", 25),
)


class Memory:
    def __init__(self, frames: Sequence[bytes], relations: Sequence[Relation]) -> None:
        self.header = ChunkHeader(Lineage("1", 1, "s"), 1, Lsn(1), Lsn(1 << 40), relations=tuple(relations))
        self.pieces_: list[tuple[bytes, np.ndarray, int]] = []
        piece: list[bytes] = []
        size = first = 0
        for number, frame in enumerate(frames):
            piece.append(frame)
            size += len(frame)
            if size >= PIECE or number == len(frames) - 1:
                offsets = np.cumsum([PAD, *map(len, piece)]).astype(np.int64)
                self.pieces_.append((b"".join(piece), offsets, first))
                first, piece, size = number + 1, [], 0
        self.buffer = np.zeros(PAD + 2 * PIECE, np.uint8)

    def pieces(self) -> Iterator[PieceData]:
        for data, offsets, first in self.pieces_:
            self.buffer[PAD : PAD + len(data)] = np.frombuffer(data, np.uint8)
            yield PieceData(self.buffer, offsets, first)

    def close(self) -> None:
        pass


def table(oid: int, name: str, own: bool) -> Relation:
    columns = tuple(
        Column(label + (name if own and at else ""), kind, -1, label == "id")
        for at, (label, of) in enumerate(COLUMNS[: width(oid, own)])
        if (kind := builtin(of)) is not None
    )
    return Relation(oid, "public", name, "d", columns, (0,))


def width(oid: int, own: bool) -> int:
    return 4 + oid % 7 if own else len(COLUMNS)


def row(rng: random.Random, key: int, columns: int, *, unchanged: bool = False) -> bytes:
    note = rng.choice(
        ("short note", 'with "quotes"\nand lines' if rng.random() < 0.03 else "a longer note " * 2)
    )
    values = [
        str(key),
        str(rng.randrange(10**6)),
        None if rng.random() < 0.1 else f"name of {key}",
        f"user{key}@example.org",
        f"{rng.randrange(10**6) / 100:.2f}",
        None if rng.random() < 0.1 else repr(rng.random()),
        rng.choice("tf"),
        f"{rng.getrandbits(128):032x}",
        "2026-11-18 06:43:00.123456+00",
        None if rng.random() < 0.1 else note,
    ][:columns]
    out = [struct.pack(">H", len(values))]
    for number, value in enumerate(values):
        if unchanged and number == 9:
            out.append(b"u")
        elif value is None:
            out.append(b"n")
        else:
            out.append(b"t" + struct.pack(">I", len(value)) + value.encode())
    return b"".join(out)


def key_only(key: int, columns: int) -> bytes:
    text = str(key).encode()
    return struct.pack(">H", columns) + b"t" + struct.pack(">I", len(text)) + text + b"n" * (columns - 1)


def change(rng: random.Random, number: int, table: int, columns: int, mixed: bool) -> bytes:
    oid = struct.pack(">I", table)
    dice = rng.random() if mixed else 0.0
    if dice < 0.4:
        return b"I" + oid + b"N" + row(rng, number, columns)
    if dice < 0.6:
        return b"U" + oid + b"N" + row(rng, number, columns)
    if dice < 0.7:
        return b"U" + oid + b"N" + row(rng, number, columns, unchanged=True)
    if dice < 0.8:
        return b"U" + oid + b"K" + key_only(number + 1, columns) + b"N" + row(rng, number, columns)
    return b"D" + oid + b"K" + key_only(number, columns)


def load(
    rows: int,
    per_transaction: int,
    tables: int = 1,
    *,
    mixed: bool = False,
    one_each: bool = False,
    own: bool = False,
) -> Memory:
    """`one_each`: all rows of a transaction are of one table. `own`: each table has its own columns."""
    rng = random.Random(1)
    oids = range(16384, 16384 + tables)
    frames: list[bytes] = []
    head = b"w" + bytes(24)
    for first in range(0, rows, per_transaction):
        lsn, now = 0x16B000000 + 400 * first, 848_213_000_000_000 + 1000 * first
        frames.append(head + b"B" + struct.pack(">QqI", lsn, now, 1000 + first))
        chosen = [rng.choice(oids)] * per_transaction if one_each else rng.choices(oids, k=per_transaction)
        frames += [
            head + change(rng, first + at, oid, width(oid, own), mixed) for at, oid in enumerate(chosen)
        ]
        frames.append(head + b"C" + struct.pack(">BQQq", 0, lsn, lsn + 8, now))
    return Memory(frames, [table(oid, f"orders_{oid}", own) for oid in oids])


def best(work: Callable[[], int], passes: int = 7) -> float:
    found = []
    for _ in range(passes):
        begin = time.process_time()
        rows = work()
        found.append((time.process_time() - begin) / rows * 1e6)
    return min(found)


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 60_000
    for name, chunk in (
        ("inserts, transactions of 100", load(rows, 100)),
        ("inserts, transactions of 1", load(rows, 1)),
        ("mixed over ten tables", load(rows, 20, 10, mixed=True)),
        ("1000 tables, 100 rows each", load(rows, 100, 1000, one_each=True)),
        ("1000 tables, single rows", load(rows, 100, 1000)),
        ("1000 tables, mixed rows", load(rows, 20, 1000, mixed=True)),
        ("1000 unlike tables, mixed rows", load(rows, 20, 1000, mixed=True, own=True)),
    ):

        def only(chunk: Memory = chunk) -> int:
            return sum(window.changes for window in decode(chunk, Lsn(1)))

        def both(chunk: Memory = chunk) -> int:
            return sum(len(lines(window)) for window in decode(chunk, Lsn(1)))

        def read(chunk: Memory = chunk) -> int:
            return sum(len(piece.offsets) >= 0 for piece in chunk.pieces()) and rows

        size = sum(len(data) for data, _, _ in chunk.pieces_) / rows
        alone = best(read)
        decoding = best(only)
        print(
            f"{name:30} {size:4.0f} bytes a row: read {alone:.3f}, decode {decoding - alone:.3f}, "
            f"lines {best(both) - decoding:.3f} µs a row"
        )


if __name__ == "__main__":
    main()
