"""How long `--once` bears with trouble: a minute in which nothing moves.

What comes in: again and again, what is shown of capture and of each pipeline. What goes out: the error
that ends the run, once patience is spent.

What must hold: a run ends, however often what fails is started again in between. Trouble is over when
what is in trouble, or a pipeline, has got further than ever before, or has been well for a while;
starting again is neither. What a pipeline lacks is not mended by capture's going on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import RunnelError
from ..postgres.lsn import Lsn
from ..progress.state import CAPTURE
from .display import Shown

ONCE_PATIENCE = 60.0
WELL_AFTER = 10.0
TROUBLE = {"retrying", "reconnecting", "failed", "paused"}
"""Capture is paused while a pipeline, perhaps one that does not run, keeps the log full."""
_ON_ITS_WAY = "starting"


@dataclass(slots=True)
class _Course:
    reached: int = 0
    troubled: float | None = None
    """Since when."""
    well: float | None = None


class Patience:
    def __init__(self) -> None:
        self._courses: dict[str, _Course] = {}

    def look(self, shown: Mapping[str, Shown], now: float) -> RunnelError | None:
        """Why it is enough; None while it is not."""
        moved = {who for who, one in shown.items() if self._moved(who, one)}
        delivered = moved - {CAPTURE}
        for who, one in shown.items():
            course = self._courses[who]
            if one.state in TROUBLE:
                course.well = None
                if course.troubled is None or delivered or who in moved:
                    course.troubled = now
                elif now - course.troubled > ONCE_PATIENCE:
                    return _enough(who, one)
            elif delivered or who in moved:
                course.troubled = None
            elif one.state != _ON_ITS_WAY:
                course.well = now if course.well is None else course.well
                if now - course.well >= WELL_AFTER:
                    course.troubled = None
            else:
                course.well = None
        return None

    def _moved(self, who: str, shown: Shown) -> bool:
        """Capture moves with its log: what it receives again after each start is no way on."""
        course = self._courses.setdefault(who, _Course())
        text = shown.log_lsn if who == CAPTURE else shown.lsn
        before, course.reached = course.reached, max(course.reached, Lsn.parse(text) if text else 0)
        return course.reached > before


def _enough(who: str, shown: Shown) -> RunnelError:
    name = "capture" if who == CAPTURE else f"pipeline {who}"
    return RunnelError(
        f"{name}: {shown.error or shown.state}",
        hint=shown.hint or "`runnel status` shows who holds what",
    )
