"""The frames of one piece of a chunk: what each one is, and which transaction and number it has.

In: a piece as the log read it, and what the piece before left open (`Carry`). Out: arrays with one
entry per frame. Nothing here looks at rows. Whatever pgoutput cannot have sent is an error that
names the chunk and the LSN: decoding on would deliver garbage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ..errors import Refused
from ..log.api import FRAME_HEAD, ChunkHeader, PieceData
from ..postgres.lsn import Lsn
from .block import I64, U8, Mask, Transactions

POSTGRES_EPOCH = 946_684_800_000_000
"""2000-01-01 in microseconds since 1970: pgoutput counts from there."""

_SLACK = 16
"""Fixed-width reads may start at the last byte of the last frame."""

# The least bytes a message of each type has; a streamed one has a 4-byte xid more. Types that are not
# here do not belong into a chunk.
_LEAST = {"B": 21, "C": 26, "O": 10, "R": 8, "Y": 7, "I": 8, "U": 8, "D": 8, "T": 6, "M": 15}
_WITH_XID = "RYIUDTM"
_IMPOSSIBLE = 1 << 40


def _least(streamed: bool) -> I64:
    out = np.full(256, _IMPOSSIBLE, np.int64)
    for letter, size in _LEAST.items():
        if not (streamed and letter in "BC"):
            out[ord(letter)] = size + (4 if streamed and letter in _WITH_XID else 0)
    return out


_LEAST_BYTES = {streamed: _least(streamed) for streamed in (False, True)}
_COUNTED = np.zeros(256, np.int64)
_COUNTED[[ord(letter) for letter in "IUDM"]] = 1


def _view(buffer: U8, dtype: str) -> npt.NDArray[Any]:
    """Big-endian integers at every byte position: one gather reads them wherever they stand."""
    width = np.dtype(dtype).itemsize
    return np.ndarray((len(buffer) - width + 1,), dtype, buffer, 0, (1,))


@dataclass(slots=True)
class Carry:
    """The transaction in progress at the border of two pieces."""

    open: bool = False
    lsn: int = 0
    xid: int = -1
    time: int = 0
    seq: int = 0
    """Of its next change."""

    @classmethod
    def at_start(cls, header: ChunkHeader) -> Carry:
        """A part of a large transaction begins inside it, unless its Begin frame is still to come."""
        own = header.transaction
        if own is None or (header.part == 0 and not header.streamed):
            return cls()
        return cls(True, own.lsn, own.xid, own.time, header.first_seq)


class Frames:
    def __init__(self, piece: PieceData, header: ChunkHeader) -> None:
        self.header = header
        self.piece = piece
        self.buffer = piece.buffer
        self.limit = int(piece.offsets[-1])
        if self.limit + _SLACK > len(self.buffer):
            self.buffer = np.concatenate([self.buffer[: self.limit], np.zeros(_SLACK, np.uint8)])
        if len(self.buffer) >= 1 << 31:
            self.fail(0, "a piece of 2 GiB or more")
        self.u2, self.u4, self.u8 = (_view(self.buffer, kind) for kind in (">u2", ">u4", ">u8"))
        self.shift = 4 if header.streamed else 0
        """Bytes of (sub)xid between a message's type and its content."""
        self.at = piece.offsets[:-1] + FRAME_HEAD
        """Where each message begins: its type byte."""
        self.end = piece.offsets[1:]
        self.type: U8 = self.buffer[np.minimum(self.at, self.limit)]
        self._check(self.end - self.at < _LEAST_BYTES[header.streamed][self.type], "no known message")

    @property
    def name(self) -> str:
        return f"{int(self.header.start):016X}.{self.header.part:05d}"

    def fail(self, frame: int, what: str) -> NoReturn:
        start = int(self.piece.offsets[frame])
        lsn = Lsn(int.from_bytes(self.piece.buffer[start + 1 : start + 9].tobytes(), "big"))
        raise Refused(
            f"chunk {self.name}: frame {self.piece.first_frame + frame} (LSN {lsn}) is {what}",
            hint="the chunk is damaged or was written by another version of Runnel: restore it from a "
            "copy, or replay from the source after `runnel destroy` and `runnel init`",
        )

    def _check(self, bad: Mask, what: str) -> None:
        if bad.any():
            self.fail(int(np.argmax(bad)), what)

    def transactions(self, carry: Carry) -> tuple[Transactions, I64, I64, Carry]:
        """The transactions of this piece, per frame the index of its own and its seq, and the carry.

        Transaction 0 is the one carried in. A non-transactional message comes between transactions and
        is one for itself, behind all others in the arrays.
        """
        kind, at = self.type, self.at
        counted = _COUNTED[kind]
        truncates = np.flatnonzero(kind == ord("T"))
        counted[truncates] = self.u4[at[truncates] + 1 + self.shift]
        lone = np.flatnonzero(kind == ord("M"))
        if len(lone):
            lone = lone[(self.buffer[at[lone] + 1 + self.shift] & 1) == 0]
            counted[lone] = 0
        begins, commits = kind == ord("B"), kind == ord("C")
        of: I64 = np.cumsum(begins)
        level = of - np.cumsum(commits) + int(carry.open)
        self._check((level < 0) | (level > 1), "a Begin or Commit out of place")
        self._check((counted > 0) & (level == 0), "a change outside a transaction")
        first = np.flatnonzero(begins)
        place = at[first]
        before: I64 = np.cumsum(counted) - counted
        base = np.concatenate([[-carry.seq], before[first]])
        seq = before - base[of]
        lsn = np.concatenate([[carry.lsn], self.u8[place + 1].astype(np.int64)])
        time = np.concatenate([[carry.time], self.u8[place + 9].astype(np.int64) + POSTGRES_EPOCH])
        xid = np.concatenate([[carry.xid], self.u4[place + 17].astype(np.int64)])
        last = int(of[-1])
        carry = Carry(
            bool(level[-1]),
            int(lsn[last]),
            int(xid[last]),
            int(time[last]),
            int(before[-1] + counted[-1] - base[last]),
        )
        if len(lone):
            place = at[lone]
            of[lone] = len(lsn) + np.arange(len(lone))
            seq[lone] = 0
            lsn = np.concatenate([lsn, self.u8[place + 2 + self.shift].astype(np.int64)])
            sent = self.u8[place - FRAME_HEAD + 17].astype(np.int64) + POSTGRES_EPOCH
            time = np.concatenate([time, sent])
            xid = np.concatenate([xid, np.full(len(lone), -1)])
        return Transactions(lsn, xid, time), of, seq, carry
