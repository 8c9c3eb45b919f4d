"""`runnel pause`: a pipeline rests, its position stays; the others go on."""

from __future__ import annotations

import typer

from .invocation import invocation
from .known import PipelineName, known_state


def pause(ctx: typer.Context, pipeline: PipelineName) -> None:
    """Let a pipeline rest; its position stays, and so does what it still needs in log and slot."""
    config = invocation(ctx).load()
    with known_state(config) as state:
        state.pause(pipeline)
    typer.echo(f"pipeline {pipeline} is paused; it holds the slot until `runnel resume {pipeline}`")
