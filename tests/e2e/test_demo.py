"""The first minute, as a user meets it."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from runnel.demo.scratch import die_with_parent
from servers import await_condition

SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture
def place(scratch: Path) -> Path:
    """Where the demo's temporary things go, so that what is left of them shows."""
    path = scratch / f"demo-{uuid4().hex[:8]}"
    path.mkdir(mode=0o711)
    return path


def environment(place: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(SOURCE),
        "TMPDIR": str(place),
        # of a shell where Runnel is used: the demo's own server is meant all the same
        "RUNNEL_SOURCE_URL": "postgresql://nobody@127.0.0.1:1/theirs",
        "RUNNEL_LOG": "theirs",
        "PGHOSTADDR": "127.0.0.1",
        "PGPORT": "1",
        "TERM": "xterm",
        "COLUMNS": "120",
    }


def test_without_a_terminal_it_ends_by_itself_and_proves_that_everything_arrived(place: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "runnel", "demo", "--seconds", "5"],
        env=environment(place),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        preexec_fn=die_with_parent(),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    committed = re.search(r"committed +([\d,]+) changes in ([\d,]+) transactions", done.stdout)
    delivered = re.search(r"delivered +([\d,]+) JSON lines: each once, in commit order", done.stdout)
    assert committed is not None, done.stdout
    assert delivered is not None, done.stdout
    assert committed[1] == delivered[1]
    assert int(committed[1].replace(",", "")) > 100
    assert "\x1b" not in done.stdout
    assert list(place.iterdir()) == []


class OnTerminal:
    """The demo on a terminal of its own, which is read as it goes."""

    def __init__(self, place: Path) -> None:
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "runnel", "demo"],
            env=environment(place),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=die_with_parent(),  # noqa: PLW1509 - two system calls, no locks
        )
        os.close(slave)
        os.set_blocking(self.master, False)
        self.text = ""

    def shows(self, text: str) -> bool:
        with contextlib.suppress(OSError):
            self.text += os.read(self.master, 1 << 20).decode(errors="replace")
        assert self.process.poll() is None or text in self.text, self.text[-3000:]
        return text in self.text

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


@pytest.fixture
def on_terminal(place: Path) -> Iterator[OnTerminal]:
    demo = OnTerminal(place)
    yield demo
    if demo.process.poll() is None:
        demo.process.kill()
    demo.process.wait()
    os.close(demo.master)


@pytest.mark.parametrize(
    ("sign", "after", "code"),
    [
        (signal.SIGINT, "insert ", 0),
        (signal.SIGTERM, "making the subscription", 130),
        (signal.SIGKILL, "insert ", -9),
    ],
    ids=["Ctrl-C while streaming", "SIGTERM while starting", "kill -9"],
)
def test_however_it_is_ended_nothing_is_left(
    on_terminal: OnTerminal, place: Path, sign: signal.Signals, after: str, code: int
) -> None:
    await_condition(lambda: on_terminal.shows(after), 200, what=f"the demo shows {after!r}")
    family = on_terminal.family()
    assert family
    on_terminal.process.send_signal(sign)

    def ended() -> bool:
        with contextlib.suppress(OSError):  # a terminal that nobody reads blocks its writer
            os.read(on_terminal.master, 1 << 20)
        return on_terminal.process.poll() is not None

    await_condition(ended, 120, what="the demo ends")
    assert on_terminal.process.returncode == code
    await_condition(lambda: not [p for p in family if p.is_running()], 20, what="no process is left")
    await_condition(lambda: list(place.iterdir()) == [], 20, what="no directory is left")
