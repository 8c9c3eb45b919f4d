"""`runnel pipeline NAME…`: the delivering half of `run`, as a process of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import UsageError
from .invocation import invocation


def pipeline(
    ctx: typer.Context,
    names: Annotated[
        list[str], typer.Argument(metavar="NAME…", help="Pipelines to run, in one Spark session.")
    ],
    until: str | None = typer.Option(
        None, "--until", metavar="LSN", help="End when everything committed before this LSN is delivered."
    ),
) -> int:
    config = invocation(ctx).load()
    from ..postgres.lsn import Lsn
    from ..spark.driver import run_pipelines

    try:
        bound = Lsn.parse(until) if until is not None else None
    except ValueError:
        raise UsageError(f"--until: {until!r} is not an LSN", hint="for instance 0/16B3748") from None
    return run_pipelines(config, names, until=bound)
