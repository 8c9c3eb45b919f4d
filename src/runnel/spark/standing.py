"""How a pipeline's position stands to the change log.

What comes in: the log and a position. What goes out: nothing; a sentence that says what the pipeline
waits for; or an error in our words, before Spark meets a gap or a foreign log in its own.
"""

from __future__ import annotations

from ..errors import Refused
from ..log.api import ChangeLog
from ..postgres.lsn import Lsn
from ..progress.position import Position


def check_log(log: ChangeLog, pipeline: str, position: Position) -> None:
    """A gap or a foreign log is refused. A position past the log's end is legal: capture brings the log
    there."""
    first = next(iter(log.chunks(position.lsn)), None)
    if first is None:
        return
    reader = log.open(first.name)
    lineage = reader.header.lineage
    reader.close()
    # Not the timeline: capture, which starts beside us, may have just found a failover clean.
    if not any(known.same_source(lineage) for known in (position.lineage, *position.former)):
        raise Refused(
            f"the change log {log.path} was written from slot {lineage.slot} of another source"
            f" than pipeline {pipeline!r} follows (slot {position.lineage.slot})",
            hint="point log.path at this subscription's own log",
        )


def past_end(log: ChangeLog, position: Lsn) -> str | None:
    """What a pipeline waits for whose log was made anew; None: the log reaches its position."""
    end = log.usage().end
    if end is None or end >= position:
        return None
    return f"for the change log, which ends at {end}, to reach {position}"
