"""How far the slot may forget, how far the log may be trimmed, and which pipeline holds both.

Positions and the log's chunks in, LSNs out. What must hold: nothing is confirmed that is not recorded
in every pipeline's position (`ack: log`: in the log), and never anything past the log's end. A position
counts as moved over the empty chunks behind it: pipelines do not write those down one by one, so that
an idle source stays idle. Trimming goes by the bare positions: a pipeline begins exactly there, or where
it delivers again from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import Refused
from ..log.api import ChangeLog
from ..postgres.lsn import Lsn


@dataclass(frozen=True, slots=True)
class Holdings:
    acknowledge: Lsn
    trim: Lsn
    holder: str | None
    """The pipeline that is furthest behind; None: every pipeline has everything, or there is none."""


class Carried:
    """Positions carried forward, remembered by pipeline: an idle source makes thousands of empty chunks,
    and each is looked at once. Only for one life of a log."""

    def __init__(self, log: ChangeLog) -> None:
        self._log = log
        self._walked: dict[str, tuple[Lsn, Lsn]] = {}

    def of(self, pipeline: str, lsn: Lsn) -> Lsn:
        begin, reached = self._walked.get(pipeline, (lsn, lsn))
        if not begin <= lsn <= reached:  # delivered past it, or sent back for a replay
            begin = reached = lsn
        reached = carry(self._log, reached)
        self._walked[pipeline] = begin, reached
        return reached


def holdings(
    carrier: Carried,
    end: Lsn,
    positions: Mapping[str, Lsn],
    *,
    ack: str,
    holds: Mapping[str, Lsn] | None = None,
) -> Holdings:
    """`end`: of the log. Without a pipeline nobody needs anything. `holds`: from where on pipelines
    deliver again what they had once; the log is kept for it, the slot is not."""
    carried = {name: carrier.of(name, lsn) for name, lsn in positions.items()}
    reached = min(end, *carried.values()) if carried else end
    needs = carried | dict(holds or {})
    slowest = min(needs, key=lambda name: needs[name], default=None)
    return Holdings(
        acknowledge=end if ack == "log" else reached,
        trim=min((*positions.values(), *(holds or {}).values()), default=end),
        holder=slowest if slowest is not None and needs[slowest] < end else None,
    )


def carry(log: ChangeLog, lsn: Lsn) -> Lsn:
    """The position moved forward over chunks in which nothing happened."""
    try:
        for chunk in log.chunks(lsn):
            if chunk.changes or chunk.parts > 1:
                break
            lsn = chunk.end
    except Refused:
        return lsn  # before the log's begin, or the chain is broken: the pipeline says so itself
    return lsn


def excess(log: ChangeLog, upto: Lsn, too_much: int) -> Lsn:
    """What is kept for replay only gives way to the budget: the end of the oldest chunks before `upto`
    that together free `too_much` bytes."""
    first = log.usage().first
    if first is None:
        return upto
    reached = first
    for chunk in log.chunks(first):
        if too_much <= 0 or chunk.end > upto:
            break
        too_much -= chunk.bytes
        reached = chunk.end
    return reached
