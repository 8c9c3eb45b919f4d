"""What a task tells the driver: one row, its receipt, as JSON in an Arrow column.

A task's failure comes back as a receipt too: Spark would turn the exception into a stack of text and
lose its kind, its hint and the table. Raising is left for what another attempt of the task mends.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from ..errors import Kind, RunnelError
from ..postgres.lsn import Lsn
from ..sinks.api import Receipt, Reject

SCHEMA = "receipt string"


@dataclass(frozen=True, slots=True)
class TaskError:
    kind: Kind
    message: str
    hint: str

    def error(self) -> RunnelError:
        return RunnelError(self.message, hint=self.hint, kind=self.kind)


@dataclass(slots=True)
class TaskReport:
    """Everything one task says about its share of a batch."""

    index: int
    start: Lsn
    end: Lsn
    captured: int = 0
    """Changes in its chunks, delivered or not: whether the position moved over something."""
    bytes: int = 0
    changes: int = 0
    first_time: int = 0
    last_time: int = 0
    payload: dict[str, Any] = field(default_factory=dict)
    rejects: list[Reject] = field(default_factory=list)
    letters: list[Reject] = field(default_factory=list)
    """Changes of parked keys: to be stored before the batch is committed."""
    withheld: bool = False
    """It finished nothing: there are rejects, or letters that have to be stored before it commits."""
    error: TaskError | None = None
    chunk: str = ""
    """The last chunk it worked on: what its error names."""
    cpu: float = 0.0

    def to_json(self) -> str:
        value = asdict(self)
        value["start"], value["end"] = str(self.start), str(self.end)
        for name in ("rejects", "letters"):
            value[name] = [{**asdict(item), "lsn": str(item.lsn)} for item in getattr(self, name)]
        return json.dumps(value)

    @classmethod
    def from_json(cls, text: str) -> TaskReport:
        value = json.loads(text)
        value["start"], value["end"] = Lsn.parse(value["start"]), Lsn.parse(value["end"])
        for name in ("rejects", "letters"):
            value[name] = [Reject(**{**item, "lsn": Lsn.parse(item["lsn"])}) for item in value[name]]
        if value["error"] is not None:
            value["error"] = TaskError(**{**value["error"], "kind": Kind(value["error"]["kind"])})
        return cls(**value)

    def receipt(self) -> Receipt:
        return Receipt(self.index, self.changes, self.payload, tuple(self.rejects))


@dataclass(slots=True)
class BatchReport:
    """The reports of all tasks of one batch, in commit order."""

    reports: list[TaskReport]

    @classmethod
    def collect(cls, rows: Iterable[str]) -> BatchReport:
        return cls(sorted((TaskReport.from_json(row) for row in rows), key=lambda report: report.index))

    @property
    def start(self) -> Lsn:
        return self.reports[0].start

    @property
    def end(self) -> Lsn:
        return self.reports[0].end

    @property
    def first_time(self) -> int:
        return min((r.first_time for r in self.reports if r.first_time), default=0)

    @property
    def last_time(self) -> int:
        return max((r.last_time for r in self.reports), default=0)

    @property
    def captured(self) -> int:
        return sum(r.captured for r in self.reports)

    @property
    def changes(self) -> int:
        return sum(r.changes for r in self.reports)

    @property
    def rejects(self) -> list[Reject]:
        return [reject for r in self.reports for reject in r.rejects]

    @property
    def letters(self) -> list[Reject]:
        return [letter for r in self.reports for letter in r.letters]

    @property
    def withheld(self) -> bool:
        return any(r.withheld for r in self.reports)

    @property
    def error(self) -> TaskError | None:
        """The worst of the tasks' errors: one that no retry mends before one that may."""
        errors = [r.error for r in self.reports if r.error is not None]
        return next((e for e in errors if e.kind is not Kind.TRANSIENT), errors[0] if errors else None)
