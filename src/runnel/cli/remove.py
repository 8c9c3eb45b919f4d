"""`runnel remove`: retire a pipeline, so that it no longer holds log and slot."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import RunnelError, counted
from .invocation import invocation
from .known import PipelineName, known_state


def remove(
    ctx: typer.Context,
    pipeline: PipelineName,
    with_letters: Annotated[
        bool, typer.Option("--with-letters", help="Also if it has dead letters: they are dropped.")
    ] = False,
) -> None:
    """Retire a pipeline: its position is forgotten, the slot moves on without it."""
    config = invocation(ctx).load()
    with known_state(config) as state:
        letters = state.letter_counts().get(pipeline, 0)
        if letters and not with_letters:
            raise RunnelError(
                f"pipeline {pipeline!r} has {counted(letters, 'dead letter')}",
                hint=f"runnel dead-letters replay {pipeline}, or runnel remove {pipeline} --with-letters",
            )
        state.remove(pipeline)
    typer.echo(f"pipeline {pipeline} removed")
    if pipeline in config.pipelines:
        typer.echo(
            "it is still configured: the next `runnel init` or `run` begins it anew at that moment",
            err=True,
        )
