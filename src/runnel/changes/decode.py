"""Chunk in, windows out: pgoutput's frames become columns.

All rows of a piece are walked together, column by column: first every row's first value, then every
row's second one, whatever its table. Rows are sorted by (outline of the table, operation, kind of old
tuple) before, so each sheet is a slice of the result: a thousand tables cost little more than one.
No Python runs per row or per transaction. Only truncates and messages are taken one by
one: they are rare, and each is more than a row (a list of tables, a text of its own).

What must hold: every byte of a row's frame is accounted for, else it is an error (see `Frames`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..log.api import ChunkHeader, ChunkReader
from ..postgres.lsn import Lsn
from .block import I32, I64, NULL, TEXT, U8, UNCHANGED, Message, Op, Sheet, Tuples, Window
from .frames import Carry, Frames
from .relation import Outline, Relation

OWN_PREFIX = "runnel"
"""Of the messages that Runnel itself writes: never delivered."""

# What a row's frame is: 3 * operation + kind of its first tuple.
_INSERT, _UPDATE, _UPDATE_KEY, _UPDATE_FULL, _DELETE_KEY, _DELETE_FULL = 0, 3, 4, 5, 7, 8
_FORMS = 9
_OPERATION = np.full(256, -1, np.int16)
_OPERATION[[ord(letter) for letter in "IUD"]] = [0, 3, 6]
_TUPLE = np.full(256, 99, np.int16)
_TUPLE[[ord(letter) for letter in "NKO"]] = [0, 1, 2]
_POSSIBLE = np.zeros(128, np.bool_)
_POSSIBLE[[_INSERT, _UPDATE, _UPDATE_KEY, _UPDATE_FULL, _DELETE_KEY, _DELETE_FULL]] = True
_OP = {0: Op.INSERT, 1: Op.UPDATE, 2: Op.DELETE}

_MIDDLE = 1 << 31
"""Taken off an oid, which is unsigned, so that it fits into the upper half of an int64 in its order."""


def decode(reader: ChunkReader, after: Lsn, *, messages: bool = True) -> Iterator[Window]:
    """Every change of the chunk whose transaction committed at or behind `after`, in windows.

    A window is valid until the next one is asked for.
    """
    header = reader.header
    if header.transaction is not None and header.transaction.lsn < after:
        return
    versions = _Versions(header)
    carry = Carry.at_start(header)
    frames: Frames | None = None
    for piece in reader.pieces():
        if len(piece.offsets) < 2:
            continue
        frames = Frames(piece, header)
        window, carry = _Piece(frames, versions, after, messages).decode(carry)
        if window.changes:
            yield window
    if carry.open and header.transaction is None and frames is not None:
        frames.fail(len(frames.at) - 1, "the last one, inside a transaction")


class _Versions:
    """Which relation is in force for an oid at a frame."""

    def __init__(self, header: ChunkHeader) -> None:
        known = [(relation.oid, 0, relation) for relation in header.relations]
        known += [(relation.oid, frame, relation) for frame, relation in header.changed]
        known.sort(key=lambda entry: entry[:2])  # stable: of two at frame 0 the changed one is last
        self.relations = [relation for _, _, relation in known]
        self.keys: I64 = np.array([((oid - _MIDDLE) << 32) + frame for oid, frame, _ in known], np.int64)
        """Ordered by oid, then by the frame from which on the relation is in force."""
        self.oids: I64 = np.array([oid for oid, _, _ in known], np.int64)
        # Wide tables first: the rows that still have a column k are then always the first ones.
        found = dict.fromkeys(relation.outline for relation in self.relations)
        self.outlines = sorted(found, key=lambda outline: -outline.columns)
        place = {outline: number for number, outline in enumerate(self.outlines)}
        self.outline: I64 = np.array([place[r.outline] for r in self.relations], np.int64)
        """Per relation: index into `outlines`."""

    def find(self, frames: Frames, oids: I64, at: npt.NDArray[np.intp]) -> I64:
        """Index into `relations` for each (oid, frame of the piece)."""
        if not self.relations:
            frames.fail(int(at[0]), "a change of a relation that the chunk does not describe")
        if len(self.relations) == 1:
            version = np.zeros(len(oids), np.int64)
        else:
            key = ((oids - _MIDDLE) << 32) + (at + frames.piece.first_frame)
            version = np.maximum(np.searchsorted(self.keys, key, side="right") - 1, 0)
        wrong = self.oids[version] != oids
        if len(self.relations) == 1 and self.keys[0] & 0xFFFFFFFF:
            wrong |= (at + frames.piece.first_frame) < (self.keys[0] & 0xFFFFFFFF)
        if wrong.any():
            row = int(np.argmax(wrong))
            frames.fail(int(at[row]), f"of relation {oids[row]}, which the chunk does not describe there")
        return version

    def among(self, version: I64) -> tuple[list[Relation], I32]:
        """The relations that occur here, and for each row which of them it has."""
        present = np.flatnonzero(np.bincount(version))
        number = np.empty(len(self.relations), np.int32)
        number[present] = np.arange(len(present))
        return [self.relations[one] for one in present.tolist()], number[version]


class _Piece:
    def __init__(self, frames: Frames, versions: _Versions, after: Lsn, messages: bool) -> None:
        self.frames = frames
        self.versions = versions
        self.after = after
        self.deliver_messages = messages

    def decode(self, carry: Carry) -> tuple[Window, Carry]:
        frames = self.frames
        transactions, self.of, self.seq, carry = frames.transactions(carry)
        kind = frames.type
        rows = _OPERATION[kind] >= 0
        count = rows.astype(np.int64)
        truncates = np.flatnonzero(kind == ord("T"))
        count[truncates] = frames.u4[frames.at[truncates] + 1 + frames.shift]
        messages: dict[int, Message] = {}
        for frame in np.flatnonzero(kind == ord("M")).tolist():
            message = self._message(frame)
            if self.deliver_messages and message.prefix != OWN_PREFIX:
                messages[frame] = message
                count[frame] = 1
        if int(transactions.lsn.min()) < self.after:
            early = transactions.lsn[self.of] < self.after
            count[early] = 0
            rows &= ~early
        self.order = np.cumsum(count) - count
        changes = int(self.order[-1] + count[-1])
        sheets = self._row_sheets(np.flatnonzero(rows)) if changes else []
        sheets += self._truncates([frame for frame in truncates.tolist() if count[frame]])
        sheets += self._messages([frame for frame in messages if count[frame]], messages)
        used = (int(frames.piece.offsets[0]), frames.limit)
        return Window(changes, transactions, sheets, frames.buffer, used), carry

    def _row_sheets(self, rows: npt.NDArray[np.intp]) -> list[Sheet]:
        if not len(rows):
            return []
        frames, versions = self.frames, self.versions
        place = frames.at[rows] + frames.shift
        form = _OPERATION[frames.type[rows]] + _TUPLE[frames.buffer[place + 5]]
        if not (possible := _POSSIBLE[form]).all():
            frames.fail(int(rows[np.argmin(possible)]), "a row with a tuple that cannot be there")
        version = versions.find(frames, frames.u4[place + 1].astype(np.int64), rows)
        group = versions.outline[version] * _FORMS + form
        sizes = np.bincount(group)
        present = np.flatnonzero(sizes)
        if len(present) > 1:
            narrow = group.astype(np.uint16) if len(sizes) < 1 << 16 else group
            sort = np.argsort(narrow, kind="stable")  # 16 bits: a radix sort
            rows, place, version = rows[sort], place[sort], version[sort]
        spans: list[_Span] = []
        end = 0
        for code, size in zip(present.tolist(), sizes[present].tolist(), strict=True):
            spans.append(_Span(versions.outlines[code // _FORMS], code % _FORMS, end, end + size))
            end += size
        position = place + 6
        first = _walk(frames, rows, position, spans)
        both = [span for span in spans if span.form in (_UPDATE_KEY, _UPDATE_FULL)]
        second = None
        if both:
            chosen = np.concatenate([np.arange(span.start, span.end) for span in both])
            after = position[chosen]
            if (wrong := frames.buffer[after] != ord("N")).any():
                frames.fail(int(rows[chosen[np.argmax(wrong)]]), "an update without its new row")
            after += 1
            second = _walk(frames, rows[chosen], after, both)
            position[chosen] = after
        if (wrong := position != frames.end[rows]).any():
            frames.fail(int(rows[np.argmax(wrong)]), "a row that does not end with its frame")
        return self._sheets(rows, version, spans, first, second)

    def _sheets(
        self,
        rows: npt.NDArray[np.intp],
        version: I64,
        spans: list[_Span],
        first: _Walked,
        second: _Walked | None,
    ) -> list[Sheet]:
        order = self.order[rows].astype(np.int32)
        transaction = self.of[rows].astype(np.int32)
        seq = self.seq[rows]
        sheets: list[Sheet] = []
        used = 0
        for span in spans:
            outline, form, here = span.outline, span.form, slice(span.start, span.end)
            everything = tuple(range(outline.columns))
            old = new = None
            if form in (_INSERT, _UPDATE):
                new = first.tuples(self.frames, everything, here, outline)
            else:
                has = everything if form in (_UPDATE_FULL, _DELETE_FULL) else outline.identity
                old = first.tuples(self.frames, has, here, outline)
            if old is not None and form in (_UPDATE_KEY, _UPDATE_FULL) and second is not None:
                new = second.tuples(self.frames, everything, slice(used, used + span.rows), outline)
                used += span.rows
                _complete(new, old)
            relations, which = self.versions.among(version[here])
            sheets.append(
                Sheet(_OP[form // 3], relations, which, order[here], transaction[here], seq[here], new, old)
            )
        return sheets

    def _message(self, frame: int) -> Message:
        frames = self.frames
        start = int(frames.at[frame]) + 1 + frames.shift
        body = frames.buffer[start : int(frames.end[frame])].tobytes()
        prefix, zero, rest = body[9:].partition(b"\0")
        if not zero or len(rest) < 4 or len(rest) - 4 != int.from_bytes(rest[:4], "big"):
            frames.fail(frame, "a message that does not end with its frame")
        return Message(prefix.decode("utf-8", "replace"), rest[4:], bool(body[0] & 1))

    def _messages(self, chosen: list[int], messages: dict[int, Message]) -> list[Sheet]:
        if not chosen:
            return []
        return [
            Sheet(
                Op.MESSAGE,
                (),
                np.zeros(len(chosen), np.int32),
                self.order[chosen].astype(np.int32),
                self.of[chosen].astype(np.int32),
                self.seq[chosen],
                messages=tuple(messages[frame] for frame in chosen),
            )
        ]

    def _truncates(self, chosen: list[int]) -> list[Sheet]:
        """A TRUNCATE of several tables is one change of each."""
        if not chosen:
            return []
        frames = self.frames
        found: list[I64] = []
        for frame in chosen:
            place = int(frames.at[frame]) + frames.shift
            tables = int(frames.u4[place + 1])
            if place + 6 + 4 * tables != int(frames.end[frame]):
                frames.fail(frame, "a truncate that does not end with its frame")
            oids = frames.u4[place + 6 + 4 * np.arange(tables)].astype(np.int64)
            found.append(self.versions.find(frames, oids, np.full(tables, frame)))
        each = np.repeat(chosen, [len(some) for some in found])
        number = np.concatenate([np.arange(len(some)) for some in found])
        relations, which = self.versions.among(np.concatenate(found))
        order = (self.order[each] + number).astype(np.int32)
        of = self.of[each].astype(np.int32)
        return [Sheet(Op.TRUNCATE, relations, which, order, of, self.seq[each] + number)]


@dataclass(slots=True)
class _Span:
    """Rows start to end of the sorted ones: one sheet."""

    outline: Outline
    form: int
    start: int
    end: int

    @property
    def rows(self) -> int:
        return self.end - self.start


@dataclass(slots=True)
class _Walked:
    places: I32
    kinds: U8

    def tuples(self, frames: Frames, present: tuple[int, ...], rows: slice, outline: Outline) -> Tuples:
        wide = outline.columns
        return Tuples(frames.buffer, self.places[:wide, rows], self.kinds[:wide, rows], present)


def _walk(frames: Frames, rows: npt.NDArray[np.intp], position: I64, spans: list[_Span]) -> _Walked:
    """Read one tuple of every row, from its column count at `position`, which moves to its end.

    The rows are those of the spans, by falling width.
    """
    widths, sizes = [span.outline.columns for span in spans], [span.rows for span in spans]
    if (wrong := frames.u2[position] != np.repeat(widths, sizes)).any():
        frames.fail(int(rows[np.argmax(wrong)]), "a row with another number of columns than its relation")
    position += 2
    # How many rows have a column k: the widths fall, so they are the first ones.
    widest = widths[0]
    having = np.zeros(widest + 1, np.int64)
    np.add.at(having, widths, sizes)
    active = np.cumsum(having[::-1])[::-1][1:].tolist()
    places = np.empty((widest, len(rows), 2), np.int32)
    kinds = np.empty((widest, len(rows)), np.uint8)
    for column, count in enumerate(active):
        here = position[:count]
        kind = frames.buffer[here]
        length = frames.u4[here + 1].astype(np.int64)
        text = kind == TEXT
        if text.all():
            here += 5
        else:
            known = text | (kind == NULL) | (kind == UNCHANGED)
            if not known.all():
                frames.fail(int(rows[np.argmin(known)]), "a row with a value of no known kind")
            length *= text
            here += 1
            here += text.view(np.uint8) << 2
        places[column, :count, 0] = here
        here += length
        if int(here.max()) > frames.limit:
            frames.fail(
                int(rows[np.argmax(here > frames.end[rows[:count]])]), "a row longer than its frame"
            )
        places[column, :count, 1] = here
        kinds[column, :count] = kind
    return _Walked(places, kinds)


def _complete(new: Tuples, old: Tuples) -> None:
    """A value the WAL left out of the new row because it is unchanged stands in the old one."""
    left_out = new.kinds == UNCHANGED
    if not left_out.any():
        return
    has = np.zeros(len(left_out), np.bool_)
    has[list(old.present)] = True
    known = left_out & has[:, None]
    new.places[known] = old.places[known]
    new.kinds[known] = old.kinds[known]
