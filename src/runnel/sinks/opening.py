"""Opening a sink for a pipeline: whose word counts, the target's record or the pipeline's row.

What comes in: a sink, and the position that the state gave its owner. What goes out: where to begin.
What must hold: the target's record is the authority, except in the life of a pipeline that was just
registered. Such a pipeline begins where it was registered; what an earlier one left in the target stays.
It never begins before that record: no change is delivered twice. A target without a record begins at
the pipeline's row, or where the row says that the log is held for a replay: the row's position itself
never goes back, since the slot was confirmed by it.
"""

from __future__ import annotations

import logging

from ..progress.position import Position
from ..progress.state import State
from .api import Sink

logger = logging.getLogger("runnel.pipeline")


def open_sink(sink: Sink, pipeline: str, recorded: Position, state: State) -> Position:
    """`recorded`: as claimed by this owner."""
    fresh = state.is_fresh(pipeline)
    begin = recorded
    if not sink.capabilities.holds_position:
        held = state.held(pipeline)
        begin = recorded if held is None else recorded.at(min(held, recorded.lsn))
    position = sink.open(begin)
    if fresh:
        if position.lsn < recorded.lsn:
            logger.warning(
                "pipeline %s was registered anew at %s; its target was left at %s by an earlier one."
                " What was committed between is not delivered",
                pipeline,
                recorded.lsn,
                position.lsn,
            )
            sink.reposition(recorded.lsn)
            position = position.at(recorded.lsn)
        state.begun(pipeline)
    # A replay, or a target restored from a backup: what it needs again must not be trimmed meanwhile.
    state.hold(pipeline, position.lsn if position.lsn < recorded.lsn else None)
    return position
