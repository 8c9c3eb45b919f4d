"""`runnel resume`: a paused pipeline goes on where it stopped."""

from __future__ import annotations

from typing import Annotated

import typer

from ..progress.state import State
from .invocation import invocation


def resume(
    ctx: typer.Context,
    pipeline: Annotated[str, typer.Argument(metavar="PIPELINE", help="Its name in the configuration.")],
) -> None:
    """Let a paused pipeline go on."""
    config = invocation(ctx).load()
    with State.connect(config.state_url, config.source.name) as state:
        state.known()
        state.resume(pipeline)
    typer.echo(f"pipeline {pipeline} goes on")
