"""`runnel resume`: a paused pipeline goes on where it stopped."""

from __future__ import annotations

import typer

from .invocation import invocation
from .known import PipelineName, known_state


def resume(ctx: typer.Context, pipeline: PipelineName) -> None:
    """Let a paused pipeline go on."""
    config = invocation(ctx).load()
    with known_state(config) as state:
        state.resume(pipeline)
    typer.echo(f"pipeline {pipeline} goes on")
