"""What `run` shows on stderr: on a terminal one line per pipeline that stays in place, elsewhere log lines.

What comes in: the children's events and log lines. Standard output is never touched.
"""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..progress.state import CAPTURE

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

logger = logging.getLogger("runnel.run")

PROGRESS_EVERY = 10.0


@dataclass(slots=True)
class Shown:
    """The last thing known about capture or a pipeline."""

    state: str = "starting"
    error: str = ""
    hint: str = ""
    lsn: str = ""
    log_lsn: str = ""
    """Of capture: where its log ends."""
    changes: int = 0
    rate: float = 0.0
    lag_bytes: int = 0
    lag_seconds: float = 0.0

    def take(self, event: dict[str, Any]) -> None:
        for name in ("lsn", "log_lsn", "changes", "rate", "lag_bytes", "lag_seconds"):
            if event.get(name) is not None:
                setattr(self, name, event[name])
        if event["event"] == "state":
            self.state = str(event.get("state", self.state))
            self.error = str(event.get("error") or event.get("why") or "")
            self.hint = str(event.get("hint") or "")


class Display(Protocol):
    def begin(self) -> None: ...

    def event(self, who: str, event: dict[str, Any], shown: Shown) -> None: ...

    def line(self, text: str) -> None: ...

    def end(self) -> None: ...


class LogLines:
    """A line when a state changes, and how far each pipeline is every ten seconds if it moved."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[str, str]] = {}
        self._progress: dict[str, tuple[float, int]] = {}

    def begin(self) -> None:
        return

    def event(self, who: str, event: dict[str, Any], shown: Shown) -> None:
        if event["event"] == "state":
            told = (shown.state, shown.error)
            if self._told.get(who) == told:
                return
            self._told[who] = told
            troubled = shown.state in {"failed", "retrying", "reconnecting"}
            text = f"{who} is {shown.state}" + (f": {shown.error}" if shown.error else "")
            if troubled and shown.hint:
                text += f" ({shown.hint})"
            logger.log(logging.WARNING if troubled else logging.INFO, "%s", text)
        elif event["event"] == "progress" and event.get("changes") is not None:
            at, changes = self._progress.get(who, (0.0, 0))
            now = time.monotonic()
            if shown.changes != changes and now - at >= PROGRESS_EVERY:
                self._progress[who] = (now, shown.changes)
                fields: dict[str, object] = {"changes": shown.changes, "lsn": shown.lsn}
                if who != CAPTURE:
                    fields |= {"rate": shown.rate, "lag_seconds": shown.lag_seconds}
                logger.info("%s", who, extra={"fields": fields})

    def line(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)  # noqa: T201  a child's log line, already formatted

    def end(self) -> None:
        return


class InPlace:
    """A table that is redrawn; other lines scroll above it. Until it begins, states are log lines: the
    source may be out of reach for long."""

    def __init__(self, shown: dict[str, Shown], console: Console | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._shown = shown
        self._before: LogLines | None = LogLines()
        self._console = console or Console(stderr=True, highlight=False)
        self._live = Live(
            console=self._console, get_renderable=self._table, refresh_per_second=4, redirect_stdout=False
        )

    def begin(self) -> None:
        self._before = None
        self._live.start()

    def event(self, who: str, event: dict[str, Any], shown: Shown) -> None:
        if self._before is not None:
            self._before.event(who, event, shown)
        # else the next redraw shows it

    def line(self, text: str) -> None:
        self._console.print(text, markup=False)

    def end(self) -> None:
        self._live.stop()

    def _table(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        for who, shown in self._shown.items():
            colour = _COLOURS.get(shown.state, "yellow")
            is_capture = who == CAPTURE
            table.add_row(
                Text(who, "bold"),
                Text(shown.state, colour),
                Text("" if is_capture else f"{shown.rate:,.0f}/s"),
                Text("" if is_capture else f"{shown.changes:,} changes"),
                Text("" if is_capture else f"lag {shown.lag_seconds:.1f} s"),
                Text(shown.error, "red" if shown.state in {"failed", "retrying"} else "dim"),
            )
        return table


_COLOURS = {"live": "green", "streaming": "green", "failed": "red", "retrying": "red", "stopped": "dim"}


def make_display(shown: dict[str, Shown], *, plain: bool) -> Display:
    """`plain`: log lines whatever stderr is (JSON was asked for, or data goes to the same screen)."""
    return LogLines() if plain or not sys.stderr.isatty() else InPlace(shown)
