"""The relations a log already knows: the last version of each, read from its chunks' headers."""

from __future__ import annotations

from collections import deque

from ..changes.relation import Relation
from ..log.api import ChangeLog

_CHUNKS = 2000
"""Headers looked at, the newest. What only older ones knew is new again: no schema change is then seen
where a table was altered while capture was down and had not been written to for that long."""


def known_relations(log: ChangeLog) -> list[Relation]:
    first = log.usage().first
    if first is None:
        return []
    known: dict[int, Relation] = {}
    for chunk in deque(log.chunks(first), maxlen=_CHUNKS):
        reader = log.open(chunk.name)
        try:
            header = reader.header
        finally:
            reader.close()
        for relation in (*header.relations, *(relation for _, relation in header.changed)):
            known[relation.oid] = relation
    return list(known.values())
