"""The texts that a transaction gives to each of its changes: LSN, xid and time.

All transactions of a window at once, in fixed-width rows of bytes whose text is right-aligned:
one-row transactions must cost no more than others, so nothing here runs per transaction.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..changes.block import I64, U8, Transactions

_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_NIBBLES = np.arange(28, -4, -4)
_TENS = 10 ** np.arange(9, -1, -1, dtype=np.int64)
_FIRST_TIME, _LAST_TIME = -62_135_596_800_000_000, 253_402_300_799_999_999  # years 1 to 9999


@dataclass(slots=True)
class Stamps:
    """Row i of `text` from `start[i]` to its end."""

    text: U8
    start: I64

    @property
    def width(self) -> int:
        return int(self.text.shape[1])


def _bytes(text: str) -> U8:
    return np.frombuffer(text.encode(), np.uint8)


def _width(digits: npt.NDArray[np.integer]) -> I64:
    """Digits that a number needs, given all of them with leading zeros: at least one."""
    significant = digits != 0
    significant[:, -1] = True
    width: I64 = digits.shape[1] - np.argmax(significant, axis=1)
    return width


def _each_width(width: I64) -> list[tuple[int, npt.NDArray[np.intp] | slice]]:
    """Rows by width: in practice one or two groups."""
    sizes = np.flatnonzero(np.bincount(width)).tolist()
    if len(sizes) == 1:
        return [(sizes[0], slice(None))]
    return [(size, np.flatnonzero(width == size)) for size in sizes]


def lsn_stamps(lsn: I64, behind: str) -> Stamps:
    """`16/B374D848` as Postgres writes it, followed by `behind`."""
    high = (lsn[:, None] >> 32 >> _NIBBLES) & 15
    low = (lsn[:, None] >> _NIBBLES) & 15
    high_width, low_width = _width(high), _width(low)
    text = np.empty((len(lsn), 17 + len(behind)), np.uint8)
    text[:, 17:] = _bytes(behind)
    text[:, 9:17] = _HEX[low]
    for size, rows in _each_width(low_width):
        slash = 16 - size
        text[rows, slash] = ord("/")
        text[rows, slash - 8 : slash] = _HEX[high[rows]]
    return Stamps(text, 16 - low_width - high_width)


def times(time: I64) -> U8:
    """`2026-11-18T06:43:00.123456Z`, one row of 27 bytes each."""
    clipped = np.clip(time, _FIRST_TIME, _LAST_TIME)
    text = pa.array(clipped).cast(pa.timestamp("us")).cast(pa.string())
    out = np.empty((len(time), 27), np.uint8)
    out[:, :26] = np.frombuffer(text.buffers()[2], np.uint8)[: 26 * len(time)].reshape(-1, 26)
    out[:, 10] = ord("T")
    out[:, 26] = ord("Z")
    return out


def member_stamps(transactions: Transactions) -> tuple[Stamps, Stamps]:
    """What stands behind `"lsn":"`, and what stands behind seq: `,"xid":742,"time":"…Z"`."""
    first = lsn_stamps(transactions.lsn, '","seq":')
    xid, label, prefix, suffix = transactions.xid, ',"xid":', ',"time":"', '"'
    digits = (np.maximum(xid, 0)[:, None] // _TENS) % 10
    width = _width(digits)
    end = len(label) + 10
    text = np.empty((len(xid), end + len(prefix) + 27 + len(suffix)), np.uint8)
    text[:, end - 10 : end] = digits + ord("0")
    for size, rows in _each_width(width):
        text[rows, end - size - len(label) : end - size] = _bytes(label)
    text[:, end : end + len(prefix)] = _bytes(prefix)
    text[:, end + len(prefix) : -len(suffix)] = times(transactions.time)
    text[:, -len(suffix) :] = _bytes(suffix)
    start = np.where(xid < 0, end, end - width - len(label))
    return first, Stamps(text, start)
