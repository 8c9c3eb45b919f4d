"""How far a pipeline is durable: one versioned record, kept by the sink where it can, else in Runnel's
own table. `lsn` is an end LSN: everything committed before it is durable."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import Refused
from ..log.api import Lineage
from ..postgres.lsn import Lsn

VERSION = 1


@dataclass(frozen=True, slots=True)
class Position:
    lineage: Lineage
    epoch: int
    """Of the pipeline's owner: a later owner has a higher one and the earlier then fails to commit."""
    lsn: Lsn
    tables: dict[str, Any] = field(default_factory=dict)
    """Per table not yet live: its snapshot, the ranges done, its own lsn."""
    former: tuple[Lineage, ...] = field(default=(), compare=False)
    """Lineages of before a failover or an upgrade, as the state told this owner; never written down."""

    def owns(self, target: Lineage) -> bool:
        """May a target of this lineage be gone on with? An earlier timeline is a failover that was found
        clean before a pipeline may start; a later one was filled by somebody who knows more than we."""
        return any(
            known.same_source(target) and target.timeline <= known.timeline
            for known in (self.lineage, *self.former)
        )

    def at(self, lsn: Lsn) -> Position:
        return replace(self, lsn=lsn)

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "lineage": self.lineage.to_json(),
            "epoch": self.epoch,
            "lsn": str(self.lsn),
            "tables": self.tables,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Position:
        if value.get("version") != VERSION:
            raise Refused(
                f"a position record of version {value.get('version')} is not known to this Runnel",
                hint="use the Runnel version that wrote it, or a later one",
            )
        return cls(
            Lineage.from_json(value["lineage"]),
            value["epoch"],
            Lsn.parse(value["lsn"]),
            value.get("tables", {}),
        )
