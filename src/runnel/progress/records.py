"""The rows of Runnel's state, as plain values."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ..log.api import Lineage
from ..postgres.lsn import Lsn
from .position import Position


@dataclass(frozen=True, slots=True)
class Subscription:
    name: str
    id: uuid.UUID
    slot: str
    publication: str
    lineage: Lineage
    consistent_lsn: Lsn
    """Where the slot began; 0 while it is being made (`init` was interrupted): see `complete`."""
    capture_epoch: int
    former: tuple[Lineage, ...] = ()
    """Lineages of before a failover or an upgrade: a position under one of them is still ours."""
    state: str = "stopped"
    error: str | None = None
    detail: Any = None
    quiet: tuple[Lsn, Lsn] | None = None
    """Nothing happened from the one to the other: what the slot was told last, past the positions."""
    publication_oid: int | None = None
    """None: not noted yet."""
    members: dict[int, int] = field(default_factory=dict)
    """Oid of a table whose changes are captured → oid of its row in pg_publication_rel."""
    tables: frozenset[str] | None = None
    """The patterns that `init` last made the publication follow. None: not noted yet."""

    @property
    def complete(self) -> bool:
        return self.consistent_lsn > 0

    def owns(self, lineage: Lineage) -> bool:
        """Is a position or chunk of this lineage ours? The timeline alone does not make it foreign."""
        return any(known.same_source(lineage) for known in (self.lineage, *self.former))


@dataclass(frozen=True, slots=True)
class PipelineRow:
    name: str
    position: Position
    changes: int
    state: str
    """As last written; believe it only if `State.owner` finds somebody."""
    error: str | None
    paused: bool
    updated_at: datetime
    detail: Any = None
    last_changes: int = 0
    last_seconds: float = 0.0
    """Changes of the last stored batch, and the time since the one before: a rate."""
    fresh: bool = False
    """Registered, but its target was not opened since."""
    hold: Lsn | None = None
    """It delivers again from here on, below its position: the log keeps what follows."""
