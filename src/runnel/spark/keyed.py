"""How the tasks of a `keyed` batch share its changes: a key is always the same task's, in order.

What comes in: a batch's chunks, all of them to every task. What goes out: of each window the changes
that are this task's: those whose hash of (table, key) falls to it. A table without a key, or whose old
rows do not tell it, goes to one task as a whole; messages go to the first.

What must hold: whatever ties keys together is not divided. A batch in which a row gets another key, a
table is truncated, or the WAL left a key out goes to the first task whole; every task finds that out by
itself, from the same chunks, before it writes anything. A batch ends before the next one begins, so
only within one can two tasks meet. Each task decodes the batch, twice: that is cheap beside what a
client costs that takes records one by one.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import closing

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from ..changes.block import Op, Sheet, Tuples, Window
from ..changes.decode import decode
from ..log.api import ChangeLog
from .admission import Share

U64 = npt.NDArray[np.uint64]

_BASE = np.uint64(0x9E3779B97F4A7C15)
_NEXT = np.uint64(0xC2B2AE3D27D4EB4F)


def division(log: ChangeLog, share: Share, *, messages: bool) -> Callable[[Window], Window]:
    """What a task of this share takes of a window."""
    if any(ties_keys(window) for window in _windows(log, share, messages)):
        return (lambda window: window) if share.index == 0 else (lambda window: window.select(_NONE))
    return lambda window: part(window, share.index, share.of)


def ties_keys(window: Window) -> bool:
    """Whether something in it concerns more than one key."""
    return any(_ties(sheet) for sheet in window.sheets)


def part(window: Window, task: int, of: int) -> Window:
    """The changes that are this task's, in order."""
    mine = [sheet.order[_tasks(sheet, of) == task] for sheet in window.sheets]
    return window.select(np.sort(np.concatenate(mine)) if mine else _NONE)


_NONE = np.empty(0, np.int32)


def _windows(log: ChangeLog, share: Share, messages: bool) -> Iterator[Window]:
    for name in share.chunks:
        with closing(log.open(name)) as reader:
            yield from decode(reader, share.start, messages=messages)


def _ties(sheet: Sheet) -> bool:
    if sheet.op is Op.TRUNCATE:
        return True
    key, tuples = _key(sheet), _row(sheet)
    if tuples is None or not key:
        return False
    if any(tuples.unchanged(column).any() for column in key):
        return True
    if sheet.op is not Op.UPDATE or sheet.old is None or sheet.new is None:
        return False
    pairs = ((sheet.old.column(column), sheet.new.column(column)) for column in key)
    return any(pc.all(pc.equal(old, new)).as_py() is False for old, new in pairs)


def _key(sheet: Sheet) -> tuple[int, ...]:
    """The key's columns, if every operation tells them; all tables of a sheet have the same."""
    if not sheet.relations:
        return ()
    outline = sheet.relations[0].outline
    return outline.key if set(outline.key) <= set(outline.identity) else ()


def _row(sheet: Sheet) -> Tuples | None:
    return sheet.new if sheet.new is not None else sheet.old


def _tasks(sheet: Sheet, of: int) -> npt.NDArray[np.uint64]:
    """Per row: whose it is."""
    if not sheet.relations:
        return np.zeros(len(sheet), np.uint64)
    tables = np.array([zlib.crc32(relation.label.encode()) for relation in sheet.relations], np.uint64)
    found = tables[sheet.which]
    tuples = _row(sheet)
    for column in _key(sheet) if tuples is not None else ():
        assert tuples is not None  # noqa: S101
        found = found * _NEXT + _hashes(tuples, column)
    found ^= found >> np.uint64(32)
    found *= _BASE
    found ^= found >> np.uint64(29)
    return found % np.uint64(of)


def _hashes(tuples: Tuples, column: int) -> U64:
    """A polynomial over the bytes of each value, modulo 2^64."""
    starts, ends = tuples.places[column].T.astype(np.int64)
    sizes = ends - starts
    edges = np.concatenate([[0], np.cumsum(sizes)])
    inside = np.arange(edges[-1]) - np.repeat(edges[:-1], sizes)
    data = tuples.buffer[np.repeat(starts, sizes) + inside].astype(np.uint64) + np.uint64(1)
    powers = np.cumprod(np.full(int(sizes.max(initial=0)) + 1, _BASE, np.uint64), dtype=np.uint64)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(data * powers[inside], dtype=np.uint64)])
    found: U64 = sums[edges[1:]] - sums[edges[:-1]]
    return found
