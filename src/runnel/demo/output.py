"""What has arrived: the JSON lines a `files` sink wrote, followed as they grow, and checked at the end.

Comes in: the sink's directory. Goes out: counts, the last changes, and how long each took from its
commit in Postgres to our reading it.
"""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from ..postgres.lsn import Lsn

LAST = 10
WINDOW = 5.0
"""Seconds over which rate and lag are taken."""


@dataclass(slots=True)
class Follower:
    directory: Path
    changes: int = 0
    by_table: dict[str, Counter[str]] = field(default_factory=dict)
    last: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=LAST))
    _read: dict[Path, int] = field(default_factory=dict)
    _seen: deque[tuple[float, int, float]] = field(default_factory=deque)

    def look(self) -> int:
        """Take in what is new; returns how many changes that was. Only whole lines count: the last one
        may still be on its way."""
        new = 0
        for path in sorted(self.directory.glob("*.jsonl")):
            offset = self._read.get(path, 0)
            try:
                with path.open("rb") as file:
                    file.seek(offset)
                    data = file.read()
            except FileNotFoundError:
                continue
            end = data.rfind(b"\n") + 1
            self._read[path] = offset + end
            for line in data[:end].splitlines():
                self._take(json.loads(line))
                new += 1
        if new:
            now = time.time()
            committed = datetime.fromisoformat(self.last[-1]["time"]).astimezone(UTC).timestamp()
            self._seen.append((now, new, max(0.0, now - committed)))
        self.changes += new
        return new

    def _take(self, change: dict[str, Any]) -> None:
        table = f"{change['schema']}.{change['table']}" if "table" in change else "messages"
        self.by_table.setdefault(table, Counter())[change["op"]] += 1
        self.last.append(change)

    @property
    def rate(self) -> float:
        self._forget()
        return sum(new for _, new, _ in self._seen) / WINDOW

    @property
    def lag(self) -> float | None:
        """Median over the last seconds, from a commit to its line in the file."""
        self._forget()
        return median(lag for _, _, lag in self._seen) if self._seen else None

    def _forget(self) -> None:
        while self._seen and self._seen[0][0] < time.time() - WINDOW:
            self._seen.popleft()


@dataclass(frozen=True, slots=True)
class Verdict:
    lines: int
    in_order: bool
    """(lsn, seq) rises from line to line over all files: none twice, none out of order."""


def verify(directory: Path) -> Verdict:
    lines = 0
    in_order = True
    before = (-1, -1)
    for path in sorted(directory.glob("*.jsonl")):
        with path.open("rb") as file:
            for line in file:
                change = json.loads(line)
                place = (int(Lsn.parse(change["lsn"])), int(change["seq"]))
                in_order &= place > before
                before = place
                lines += 1
    return Verdict(lines, in_order)
