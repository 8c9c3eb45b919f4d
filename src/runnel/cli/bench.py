"""`runnel bench`: measure this machine, Runnel beside pg_recvlogical on the same backlogs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError

PARTS = ("inserts", "mixed", "singles", "stages", "latency", "idle", "huge", "pipelines", "tables")


def bench(
    only: Annotated[
        list[str] | None, typer.Argument(help=f"Parts to measure: {', '.join(PARTS)}; default: all.")
    ] = None,
    repeat: Annotated[int, typer.Option(help="Alternating drains of each backlog.", min=1)] = 3,
    output: Annotated[Path, typer.Option(help="Where the figures go as JSON.")] = Path(
        "bench/results/bench.json"
    ),
) -> None:
    """Drain the same backlogs with pg_recvlogical and with Runnel, on a PostgreSQL of its own, and print
    ratios, CPU a change, latency, memory and idle cost. It takes a quarter of an hour: let nothing else
    run meanwhile."""
    from rich.console import Console

    from ..bench.report import run
    from ..demo.apart import forget_databases

    forget_databases(os.environ)
    parts = tuple(only or PARTS)
    for part in parts:
        if part not in PARTS:
            raise UsageError(f"there is no part {part!r} to measure", hint=f"one of: {', '.join(PARTS)}")
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    run(console, parts, repeat, output)
    console.print(f"figures: {output}")
