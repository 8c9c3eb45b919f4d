"""A chunk being filled: what its header will say is gathered segment by segment.

What comes in: `Segment`s, runs of whole frames with what capture must know of them (how many changes,
which tables, which Relation messages). What goes out: frames to a `ChunkWriter` at once, and at the end
a `Filled` for `ChangeLog.append`.

What must hold: the header's relations are those in force at the chunk's first frame, so any task can
decode it alone. A Relation message counts when its frame enters a chunk, not when it is received:
the transaction it stands in may begin a new chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..changes.relation import Relation
from ..log.api import ChunkHeader, ChunkWriter, Filled, Lineage, OpenTransaction
from ..postgres.lsn import Lsn
from . import protocol
from .protocol import Frames, RelationMessage, TypeMessage

Describe = Callable[[Sequence[RelationMessage], Sequence[TypeMessage]], Sequence[Relation]]
"""Relation messages, and the Type messages sent before them, to full relations (relations.py)."""

_SLOTS = 1 << 16
"""Tables in use are marked by the low 16 bits of their oid: one store for all rows instead of a sort.
Two tables that share a slot are then both in the header, which is more than needed and never less."""


@dataclass(slots=True)
class Segment:
    frames: Frames
    changes: int
    slots: npt.NDArray[np.uint32]
    relations: list[tuple[int, Relation]]
    """(frame number in the segment, relation)."""


def segment(frames: Frames, describe: Describe, *, streamed: bool = False) -> Segment:
    rows = np.flatnonzero(protocol.IS_ROW[frames.kind])
    slots = frames.u32(rows, 5 if streamed else 1) & np.uint32(_SLOTS - 1)
    changes = len(rows)
    relations: list[tuple[int, Relation]] = []
    notable = np.flatnonzero(protocol.IS_NOTABLE[frames.kind])
    if len(notable):
        numbers: list[int] = []
        found: list[RelationMessage] = []
        types: list[TypeMessage] = []
        extra: list[int] = []
        for number in notable.tolist():
            kind, message = int(frames.kind[number]), frames.message(number)
            if kind == protocol.MESSAGE:
                changes += 1
            elif kind == protocol.TRUNCATE:
                oids = protocol.parse_truncate(message, streamed=streamed)
                changes += len(oids)
                extra += [oid & (_SLOTS - 1) for oid in oids]
            elif kind == protocol.TYPE:
                types.append(protocol.parse_type(message, streamed=streamed))
            else:
                numbers.append(number)
                found.append(protocol.parse_relation(message, streamed=streamed))
        if found:
            relations = list(zip(numbers, describe(found, types), strict=True))
        if extra:
            slots = np.concatenate([slots, np.array(extra, np.uint32)])
    return Segment(frames, changes, slots, relations)


class Versions:
    """The version in force of every table, moved by each chunk. What a chunk that never reached the log
    taught is taken back: else the schema change inside it would go unnoticed when it comes again."""

    def __init__(self, known: Iterable[Relation] = ()) -> None:
        self._known = {relation.oid: relation for relation in known}
        self._unsettled: dict[int, Relation | None] = {}
        self._in_slot: dict[int, list[int]] = {}
        for oid in self._known:
            self._place(oid)

    def _place(self, oid: int) -> None:
        mates = self._in_slot.setdefault(oid & (_SLOTS - 1), [])
        if oid not in mates:
            mates.append(oid)

    def in_slots(self, slots: Iterable[int]) -> Iterator[int]:
        """The known tables of these slots: to find those a chunk uses must not cost more with those that
        it does not."""
        for slot in slots:
            for oid in self._in_slot.get(slot, ()):
                if oid in self._known:
                    yield oid

    def __getitem__(self, oid: int) -> Relation:
        return self._known[oid]

    def first_alteration(self, relations: Iterable[tuple[int, Relation]]) -> int | None:
        """The number that stands with the first of these to be another version of a known table."""
        new: dict[int, Relation] = {}
        for number, relation in relations:
            old = new.get(relation.oid) or self._known.get(relation.oid)
            if old is not None and old != relation:
                return number
            new[relation.oid] = relation
        return None

    def learn(self, relation: Relation) -> Relation | None:
        """The version before it; the same object if nothing changed."""
        old = self._known.get(relation.oid)
        if old == relation:
            return relation
        self._unsettled.setdefault(relation.oid, old)
        self._known[relation.oid] = relation
        self._place(relation.oid)
        return old

    def settle(self) -> None:
        """All that was learned is in the log."""
        self._unsettled.clear()

    def revert(self) -> None:
        for oid, old in self._unsettled.items():
            if old is None:
                del self._known[oid]
            else:
                self._known[oid] = old
        self._unsettled.clear()


@dataclass(slots=True)
class OpenChunk:
    writer: ChunkWriter
    known: Versions
    first_seq: int = 0
    changes: int = 0
    transactions: int = 0
    first_time: int = 0
    last_time: int = 0
    changed: list[tuple[int, Relation]] = field(default_factory=list)
    _before: dict[int, Relation] = field(default_factory=dict)
    """What was in force at the first frame, of the tables that changed since."""
    _seen: npt.NDArray[np.bool_] | None = None
    _relations: tuple[Relation, ...] = ()

    def add(self, segment: Segment) -> None:
        if self._seen is None:
            self._seen = np.zeros(_SLOTS, np.bool_)
        for number, relation in segment.relations:
            self._learn(self.writer.frames + number, relation)
        self._seen[segment.slots] = True
        self.changes += segment.changes
        self.writer.write(segment.frames.data, segment.frames.length)

    def count(self, transactions: int, first_time: int, last_time: int) -> None:
        self.transactions += transactions
        self.first_time = self.first_time or first_time
        self.last_time = max(self.last_time, last_time)

    def _learn(self, frame: int, relation: Relation) -> None:
        old = self.known.learn(relation)
        if old is None or old is relation:
            return  # a new table: no frame before it can use it, so it is in force from the first on
        self._before.setdefault(relation.oid, old)
        self.changed.append((frame, relation))

    def finish(self) -> None:
        """No more frames. Called before the next chunk moves `known`."""
        seen = self._seen
        if seen is None:
            return
        used = dict.fromkeys(self.known.in_slots(np.flatnonzero(seen).tolist()))
        used |= dict.fromkeys(relation.oid for _, relation in self.changed)
        self._relations = tuple(self._before.get(oid, self.known[oid]) for oid in used)
        self._seen = None
        self._before.clear()

    def filled(
        self,
        lineage: Lineage,
        epoch: int,
        start: Lsn,
        end: Lsn,
        *,
        part: int = 0,
        parts: int = 1,
        transaction: OpenTransaction | None = None,
        streamed: bool = False,
    ) -> Filled:
        header = ChunkHeader(
            lineage=lineage,
            epoch=epoch,
            start=start,
            end=end,
            part=part,
            parts=parts,
            first_seq=self.first_seq,
            transaction=transaction,
            streamed=streamed,
            transactions=self.transactions,
            changes=self.changes,
            first_time=self.first_time,
            last_time=self.last_time,
            schema_change=bool(self.changed),
            relations=self._relations,
            changed=tuple(self.changed),
        )
        return Filled(self.writer, header)
