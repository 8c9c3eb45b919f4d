"""`runnel demo`: a first minute."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

WITHOUT_TERMINAL = 30.0


def demo(
    seconds: Annotated[
        float | None,
        typer.Option(
            min=1,
            metavar="N",
            help="End after N seconds; default: at Ctrl-C, without a terminal 30.",
        ),
    ] = None,
) -> int:
    """Start an embedded PostgreSQL 18 with a small shop that is never still, stream it into JSON lines and
    show what happens. Needs no configuration and leaves nothing behind."""
    from ..demo.apart import forget_databases
    from ..demo.demo import Demo

    forget_databases(os.environ)
    terminal = sys.stdout.isatty()
    if seconds is None and not terminal:
        seconds = WITHOUT_TERMINAL
    return Demo(seconds, terminal=terminal).run()
