"""Parked keys in a task: their changes become dead letters instead of reaching the sink.

What comes in: a window and the (table, key) pairs that are parked (without a key: the whole table).
What goes out: the window without their changes, and those changes as letters, in order.

What must hold: a parked row that gets another key stays parked under it, also for the rest of the
task (there is only one while keys are parked). Windows without a parked table pass untouched; only
rows of parked tables are looked at one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..changes.block import Block, Op, Window
from ..marshal.json import member, single
from ..postgres.lsn import Lsn
from ..sinks.api import Reject

REASON = "an earlier change of this key could not be delivered"


@dataclass(frozen=True, slots=True)
class _Row:
    order: int
    block: int
    row: int
    table: str
    key: str | None
    old_key: str | None


class Parked:
    def __init__(self, parked: Iterable[tuple[str, str | None]]) -> None:
        self._keys: dict[str, set[str | None]] = {}
        for table, key in parked:
            self._keys.setdefault(table, set()).add(key)

    def divide(self, window: Window) -> tuple[Window, list[Reject]]:
        rows = sorted(self._rows(window), key=lambda row: row.order)
        taken = [row for row in rows if self._takes(row)]
        if not taken:
            return window, []
        letters = [self._letter(window, row) for row in taken]
        return _without(window, taken), letters

    def _rows(self, window: Window) -> Iterator[_Row]:
        for at, block in enumerate(window.blocks):
            if block.relation is None or block.relation.label not in self._keys:
                continue
            keys = member(window, block, "key").to_pylist()
            old = _old_keys(window, block)
            for row, order in enumerate(block.order.tolist()):
                yield _Row(order, at, row, block.relation.label, keys[row], old[row] if old else None)

    def _takes(self, row: _Row) -> bool:
        keys = self._keys[row.table]
        if None in keys:
            return True
        if row.key is None or (row.key not in keys and row.old_key not in keys):
            return False  # a truncate has no key: it empties the table for the parked rows as well
        keys.add(row.key)
        return True

    def _letter(self, window: Window, row: _Row) -> Reject:
        block = window.blocks[row.block]
        return Reject(
            lsn=Lsn(int(window.lsn(block)[row.row])),
            seq=int(block.seq[row.row]),
            table=row.table,
            key=row.key,
            change=single(window, row.block, row.row),
            reason=REASON,
        )


def _old_keys(window: Window, block: Block) -> list[str | None] | None:
    """The keys that rows had before an update: what a delete of the old row would call its key."""
    if block.op is not Op.UPDATE or block.old is None:
        return None
    keys: list[str | None] = member(window, replace(block, op=Op.DELETE, new=None), "key").to_pylist()
    return keys


def _without(window: Window, taken: list[_Row]) -> Window:
    left = np.delete(np.arange(window.changes), [row.order for row in taken])
    sheets = []
    for sheet in window.sheets:
        place = np.searchsorted(left, sheet.order)
        kept = np.flatnonzero(np.isin(sheet.order, left))
        if len(kept):
            sheets.append(replace(sheet.select(kept), order=place[kept].astype(np.int32)))
    return replace(window, changes=len(left), sheets=sheets)
