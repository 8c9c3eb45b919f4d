"""A change log on disk for tests of what reads it: transactions of plain inserts, without a server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

import pgoutput
from runnel.log import open_log
from runnel.log.api import ChangeLog, ChunkHeader, Filled, Lineage
from runnel.postgres.lsn import Lsn

LINEAGE = Lineage("7", 1, "shop_00000000")
ORDERS = 1000
COLUMNS = ("id", "note")
START = 0x1000
STEP = 0x100
"""Each transaction begins a STEP behind the one before and ends half a STEP later."""


class LogMaker:
    """Appends chunks; transaction n commits at start + (n + 1) * STEP and inserts order n."""

    def __init__(self, path: Path, *, start: int = START, lineage: Lineage = LINEAGE) -> None:
        self.log: ChangeLog = open_log(str(path))
        self.start = start
        self.end = start
        self.count = 0
        self._lineage = lineage

    def append(self, transactions: int, *, rows: int = 1, note: str = "x") -> Lsn:
        """One chunk with so many transactions of `rows` inserts each."""
        frames: list[bytes] = []
        for _ in range(transactions):
            lsn = self.start + (self.count + 1) * STEP
            frames.append(pgoutput.begin(lsn, self.count))
            frames += [pgoutput.insert(ORDERS, f"{self.count}-{row}", note) for row in range(rows)]
            frames.append(pgoutput.commit(lsn, lsn + STEP // 2))
            self.count += 1
            end = lsn + STEP // 2
        writer = self.log.writer()
        writer.write(b"".join(frames), np.array([len(frame) for frame in frames], np.int64))
        self.log.append([Filled(writer, self._header(end, transactions, rows * transactions))])
        self.end = end
        return Lsn(end)

    def advance(self) -> Lsn:
        """A chunk in which nothing happened."""
        end = self.end + STEP // 4
        self.log.advance(self._header(end, 0, 0))
        self.end = end
        return Lsn(end)

    def _header(self, end: int, transactions: int, changes: int) -> ChunkHeader:
        time = pgoutput.EPOCH if transactions else 0
        return ChunkHeader(
            lineage=self._lineage,
            epoch=1,
            start=Lsn(self.end),
            end=Lsn(end),
            transactions=transactions,
            changes=changes,
            first_time=time,
            last_time=time,
            relations=(pgoutput.described(ORDERS, "orders", COLUMNS, key=("id",)),) if changes else (),
        )


def order_ids(first: int, last: int, rows: int = 1) -> Sequence[str]:
    return [f"{order}-{row}" for order in range(first, last) for row in range(rows)]
