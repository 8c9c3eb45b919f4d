"""What `runnel run` shows on a terminal."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from io import StringIO

import pytest
from rich.console import Console

from runnel.supervisor.display import InPlace, Shown


class Screen:
    """As much of a terminal as the display uses: lines, a cursor, going up, clearing a line."""

    def __init__(self) -> None:
        self.file = StringIO()

    def lines(self) -> list[str]:
        lines, row, column = [""], 0, 0
        for part in re.findall(r"\x1b\[[?\d;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", self.file.getvalue()):
            if part == "\n":
                row, column = row + 1, 0
                lines += [""] * (row + 1 - len(lines))
            elif part == "\r":
                column = 0
            elif part.endswith("A"):
                row -= int(part[2:-1] or 1)
            elif part == "\x1b[2K":
                lines[row] = ""
            elif not part.startswith("\x1b"):
                lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + len(part) :]
                column += len(part)
        return [line.rstrip() for line in lines if line.strip()]


@pytest.fixture
def screen() -> Screen:
    return Screen()


@pytest.fixture
def shown() -> dict[str, Shown]:
    return {name: Shown() for name in ("capture", "a", "b")}


@pytest.fixture
def display(screen: Screen, shown: dict[str, Shown]) -> Iterator[InPlace]:
    console = Console(file=screen.file, force_terminal=True, width=120, highlight=False)
    display = InPlace(shown, console)
    yield display
    display.end()


def say(display: InPlace, shown: dict[str, Shown], who: str, **event: object) -> None:
    shown[who].take(event)
    display.event(who, event, shown[who])


def test_each_pipeline_has_a_line_that_stays_in_place(
    display: InPlace, screen: Screen, shown: dict[str, Shown]
) -> None:
    display.begin()
    say(display, shown, "capture", event="state", state="streaming")
    say(display, shown, "a", event="progress", changes=1234, rate=56.0, lag_seconds=0.5, lsn="0/10")
    say(display, shown, "a", event="state", state="live")
    say(display, shown, "b", event="state", state="retrying", error="no space left")
    display.line("a child's word")
    say(display, shown, "b", event="progress", changes=7, rate=1.0, lag_seconds=12.0, lsn="0/10")
    display.line("another")
    display.end()
    said = [re.sub(r" {2,}", " | ", line) for line in screen.lines()]
    assert said == [
        "a child's word",
        "another",
        "capture | streaming",
        "a | live | 56/s | 1,234 changes | lag 0.5 s",
        "b | retrying | 1/s | 7 changes | lag 12.0 s | no space left",
    ]


def test_what_happens_before_the_display_begins_is_a_log_line(
    display: InPlace, screen: Screen, shown: dict[str, Shown], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        state = {"event": "state", "state": "reconnecting", "error": "cannot reach it", "hint": "start it"}
        say(display, shown, "capture", **state)
        say(display, shown, "capture", **state)
        assert caplog.messages == ["capture is reconnecting: cannot reach it (start it)"]
        display.begin()
        say(display, shown, "capture", event="state", state="streaming")
    assert len(caplog.messages) == 1
    display.end()
    assert "streaming" in "\n".join(screen.lines())
