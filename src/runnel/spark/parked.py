"""Parked keys in a task: their changes become dead letters instead of reaching the sink.

What comes in: a window and the (table, key) pairs that are parked (without a key: the whole table).
What goes out: the window without their changes, and those changes as letters, in order.

What must hold: a parked row that gets another key stays parked under it, and the key that a letter moves
a row away from is parked too: the target still has that row. Both count for the rest of the task (there
is only one while keys are parked); the driver starts the query anew for the next batch to know of them.
A table whose deletes do not tell the key that its other changes have (its replica identity is an index
beside the primary key) is parked as a whole: a delete would pass a parked row, which a replay would
bring back.
A message has no key and stands for itself: its name, (lsn, seq), is parked under the table "", so that
it is left out when its batch runs again and messages behind it are delivered. Windows without a parked
table pass untouched; only rows of parked tables are looked at one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..changes.block import Block, Op, Window
from ..marshal.json import member, single
from ..postgres.lsn import Lsn
from ..progress.letters import Key, keys
from ..sinks.api import Reject

MESSAGES = ""
"""The table of what belongs to none."""
REASON = "an earlier change of this key could not be delivered"


@dataclass(frozen=True, slots=True)
class _Row:
    order: int
    block: int
    row: int
    table: str
    key: str | None
    old_key: str | None
    whole: bool
    """Of a table whose changes are all parked or none."""


def covering(parked: Iterable[Key]) -> frozenset[Key]:
    """The same set in the fewest words: a table that is parked whole needs no keys. Equal sets park
    the same changes."""
    every = frozenset(parked)
    return frozenset(one for one in every if one[1] is None or (one[0], None) not in every)


def covers(parked: frozenset[Key], letter: Reject) -> bool:
    """Whether everything that must stay behind the letter is parked."""
    return (letter.table, None) in parked or parked.issuperset(keys(letter))


def named(rejects: Iterable[Reject], window: Window) -> list[Reject]:
    """What a sink rejects of a window, under the names by which it is parked: a message's, which no sink
    knows, and none where keys do not tell rows apart."""
    named = [
        reject if reject.table != MESSAGES else replace(reject, key=_name(reject.lsn, reject.seq))
        for reject in rejects
    ]
    if not named:
        return named
    relations = {relation for sheet in window.sheets for relation in sheet.relations}
    whole = {relation.label for relation in relations if not relation.tells_key}
    return [replace(one, key=None) if one.table in whole else one for one in named]


def _name(lsn: Lsn, seq: int) -> str:
    return f'{{"lsn":"{lsn}","seq":{seq}}}'


class Parked:
    def __init__(self, parked: Iterable[Key]) -> None:
        self._keys: dict[str, set[str | None]] = {}
        for table, key in parked:
            self._keys.setdefault(table, set()).add(key)

    def divide(self, window: Window) -> tuple[Window, list[Reject]]:
        rows = sorted(self._rows(window), key=lambda row: row.order)
        taken = [row for row in rows if self._takes(row)]
        if not taken:
            return window, []
        letters = [self._letter(window, row) for row in taken]
        return window.select(np.delete(np.arange(window.changes), [row.order for row in taken])), letters

    def _rows(self, window: Window) -> Iterator[_Row]:
        for at, block in enumerate(window.blocks):
            table = block.relation.label if block.relation is not None else MESSAGES
            if table not in self._keys:
                continue
            whole = block.relation is not None and not block.relation.tells_key
            now = [None] * len(block) if whole else _keys(window, block)
            old = None if whole else _old_keys(window, block)
            for row, order in enumerate(block.order.tolist()):
                yield _Row(order, at, row, table, now[row], old[row] if old else None, whole)

    def _takes(self, row: _Row) -> bool:
        parked = self._keys[row.table]
        if None in parked:
            return True
        if row.whole:  # its keys were parked while an old key still had them
            parked.add(None)
            return True
        if row.key is None:
            return False  # a truncate has no key: it empties the table for the parked rows as well
        touched = {row.key} if row.old_key is None else {row.key, row.old_key}
        if parked.isdisjoint(touched):
            return False
        parked |= touched
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
            old_key=row.old_key if row.old_key != row.key else None,
        )


def _keys(window: Window, block: Block) -> list[str | None]:
    if block.op is Op.MESSAGE:
        places = zip(window.lsn(block).tolist(), block.seq.tolist(), strict=True)
        return [_name(Lsn(lsn), seq) for lsn, seq in places]
    texts: list[str | None] = member(window, block, "key").to_pylist()
    return texts


def _old_keys(window: Window, block: Block) -> list[str | None] | None:
    """The keys that rows had before an update: what a delete of the old row would call its key."""
    if block.op is not Op.UPDATE or block.old is None:
        return None
    texts: list[str | None] = member(window, replace(block, op=Op.DELETE, new=None), "key").to_pylist()
    return texts
