"""`runnel capture`: the reading half of `run`, until SIGINT or SIGTERM."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer

from .invocation import invocation


def capture(
    ctx: typer.Context,
    confirm: Annotated[
        bool,
        typer.Option(
            "--confirm", help="Fail if at the stop the slot does not show what was delivered.", hidden=True
        ),
    ] = False,
) -> None:
    """Read the slot and append to the change log until stopped."""
    from ..capture.service import run

    config = invocation(ctx).load()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    run(config, stop, confirm=confirm)
