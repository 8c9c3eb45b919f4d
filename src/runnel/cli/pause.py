"""`runnel pause`: a pipeline rests, its position stays; the others go on."""

from __future__ import annotations

from typing import Annotated

import typer

from ..progress.state import State
from .invocation import invocation


def pause(
    ctx: typer.Context,
    pipeline: Annotated[str, typer.Argument(metavar="PIPELINE", help="Its name in the configuration.")],
) -> None:
    """Let a pipeline rest; its position stays, and so does what it still needs in log and slot."""
    config = invocation(ctx).load()
    with State.connect(config.state_url, config.source.name) as state:
        state.known()
        state.pause(pipeline)
    typer.echo(f"pipeline {pipeline} is paused; it holds the slot until `runnel resume {pipeline}`")
