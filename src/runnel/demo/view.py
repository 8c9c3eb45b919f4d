"""What the demo shows: on a terminal a view that stays in place, elsewhere a line now and then."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from .output import Follower

if TYPE_CHECKING:
    from rich.console import Group

EVERY = 2.0
"""Seconds between two plain lines."""

_COLOURS = {"insert": "green", "update": "yellow", "delete": "red"}


@dataclass(slots=True)
class Facts:
    """What there is to show, filled by the demo."""

    follower: Follower
    output: str
    state: str = "starting"
    committed: int = 0
    began: float = 0.0
    """Monotonic time of the writer's first moment; 0 before."""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began if self.began else 0.0


class View(Protocol):
    def begin(self) -> None: ...

    def say(self, text: str) -> None: ...

    def draw(self) -> None: ...

    def end(self) -> None: ...


class Plain:
    def __init__(self, facts: Facts, write: Callable[[str], object] = sys.stdout.write) -> None:
        self._facts = facts
        self._write = write
        self._next = 0.0

    def begin(self) -> None:
        return

    def say(self, text: str) -> None:
        self._write(text + "\n")
        sys.stdout.flush()

    def draw(self) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY
        facts = self._facts
        follower = facts.follower
        text = f"{facts.seconds:5.0f} s  {facts.committed:7,} committed  {follower.changes:7,} delivered"
        if follower.changes:
            text += f"  {follower.rate:6,.0f}/s  lag {_lag(follower)}  last: {brief(follower.last[-1])}"
        else:
            text += f"  {facts.state}"
        self.say(text)

    def end(self) -> None:
        return


class OnTerminal:
    def __init__(self, facts: Facts) -> None:
        from rich.console import Console
        from rich.live import Live

        self._facts = facts
        self._console = Console(highlight=False)
        self._live = Live(
            console=self._console, get_renderable=self._render, refresh_per_second=5, transient=True
        )

    def begin(self) -> None:
        self._live.start()

    def say(self, text: str) -> None:
        self._console.print(text, markup=False)

    def draw(self) -> None:
        return  # redrawn by itself

    def end(self) -> None:
        self._live.stop()

    def _render(self) -> Group:
        from rich.console import Group
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        facts, follower = self._facts, self._facts.follower
        head = Text.assemble(
            ("PostgreSQL 18", "bold"),
            " ─▶ change log ─▶ ",
            ("Spark", "bold"),
            " ─▶ ",
            ("JSON lines", "bold"),
            (f"   {facts.state}", "green" if facts.state == "live" else "yellow"),
        )
        numbers = Table.grid(padding=(0, 3))
        numbers.add_row(
            f"{facts.seconds:.0f} s",
            f"{facts.committed:,} changes committed",
            f"{follower.changes:,} delivered",
            f"{follower.rate:,.0f} a second",
            f"lag {_lag(follower)}",
        )
        tables = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
        tables.add_column("table")
        for kind, colour in _COLOURS.items():
            tables.add_column(f"{kind}s", justify="right", style=colour)
        for name, counts in sorted(follower.by_table.items()):
            tables.add_row(name, *(f"{counts[kind]:,}" for kind in _COLOURS))
        room = max(20, self._console.width - 4)
        recent = [Text(brief(change)[:room], _COLOURS.get(change["op"], "")) for change in follower.last]
        return Group(
            head,
            numbers,
            Text(""),
            tables,
            Panel(Group(*recent) if recent else Text("nothing yet", "dim"), title="the last changes"),
            Text(f"the files are in {facts.output} while this runs; Ctrl-C ends it", "dim"),
        )


def _lag(follower: Follower) -> str:
    lag = follower.lag
    return "–" if lag is None else f"{lag:.2f} s"


def brief(change: dict[str, Any]) -> str:
    """One change in one line for people."""
    row = change.get("after") or change.get("before") or {}
    text = json.dumps(row, ensure_ascii=False, separators=(",", ":"))
    return f"{change['op']:<6} {change.get('table', ''):<11} {text}"[:160]
