"""What a change log needs from the place where its files live.

A store knows files, not chunks: `directory.py` decides which names exist and in which order they
appear. Two stores: `local.py` (a directory, link(2)) and `objects.py` (any pyarrow filesystem).
"""

from __future__ import annotations

from typing import Protocol

from .chunk import Source
from .spool import Spool


class Store(Protocol):
    path: str
    poll_seconds: float
    """How soon a look-up that found nothing may be repeated; 0 where it costs microseconds."""

    def prepare(self) -> None:
        """Make the place where files go, if it is not there."""
        ...

    def spool(self) -> Spool:
        """A new file nobody sees, bound to this store."""
        ...

    def settle(self, spool: Spool) -> None:
        """From here on the spool's bytes survive a power cut, where the store can promise that."""
        ...

    def place(self, spool: Spool, name: str) -> None:
        """Give the spool its name, replacing what has it. For files nothing refers to yet."""
        ...

    def reveal(self, spool: Spool, name: str) -> None:
        """Give the spool its name if nothing has it, else FileExistsError and the spool stays."""
        ...

    def sync(self) -> None:
        """Names given so far survive a power cut."""
        ...

    def names(self) -> list[str]:
        """All names in the log, in any order; empty if the place does not exist."""
        ...

    def size(self, name: str) -> int:
        """FileNotFoundError if there is none."""
        ...

    def source(self, name: str) -> Source:
        """FileNotFoundError if there is none."""
        ...

    def read(self, name: str) -> bytes:
        """A small file, whole. FileNotFoundError if there is none."""
        ...

    def delete(self, name: str) -> None:
        """Gone is fine."""
        ...

    def stamp(self) -> object:
        """Differs whenever names may have come or gone; None where that cannot be told."""
        ...

    def destroy(self) -> None:
        """Remove the place itself if nothing is left in it."""
        ...
