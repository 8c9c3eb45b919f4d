"""Between a pipeline's driver and its planner, two processes of one machine: may a batch begin?

Two small files in a directory of the query's own. `hold`, by the driver: offer no more. `offered`, by the
planner: the end of the last batch that Spark was told of.

What must hold: the planner notes an offer, then looks for `hold`, and takes the offer back if it is there;
the driver writes `hold`, then reads the offer. Whichever comes first, no batch begins that the driver does
not know of.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..postgres.lsn import Lsn


class Control:
    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self._hold = self.directory / "hold"
        self._offered = self.directory / "offered"

    def hold(self) -> None:
        self._hold.touch()

    def release(self) -> None:
        self._hold.unlink(missing_ok=True)

    def held(self) -> bool:
        return self._hold.exists()

    def offer(self, start: Lsn, end: Lsn) -> Lsn:
        """`end` if a batch up to there may begin, else `start`."""
        if end == start:
            return start
        self._note(end)
        if not self.held():
            return end
        self._note(start)
        return start

    def offered(self) -> Lsn:
        try:
            return Lsn.parse(self._offered.read_text())
        except FileNotFoundError:
            return Lsn(0)

    def _note(self, lsn: Lsn) -> None:
        temporary = self._offered.with_suffix(".new")
        temporary.write_text(str(lsn))
        os.replace(temporary, self._offered)
