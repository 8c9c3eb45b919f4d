"""`runnel destroy`: leave nothing behind, neither at the source nor in the log's place."""

from __future__ import annotations

import shutil
from typing import Annotated

import typer

from ..capture import subscription
from ..log import open_log
from ..progress.state import State
from .invocation import invocation


def destroy(
    ctx: typer.Context,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also slot and publication that Runnel's own tables do not know."),
    ] = False,
) -> None:
    """Remove the subscription, Runnel's own tables and the change log; may be repeated."""
    config = invocation(ctx).load()
    name = config.source.name
    with State.connect(config.state_url, name) as state:
        known = state.subscription()
        subscription.destroy(config.source_url, state, name, typer.echo, force=force)
    # a log of this subscription is of no use any more, and another one may not go on in it
    log = open_log(config.log.path, config.log.settings())
    lineage = log.lineage()
    if lineage is None or (known is not None and not known.owns(lineage)):
        return
    if lineage.slot.rpartition("_")[0] == name:
        log.destroy()
        shutil.rmtree(config.stages, ignore_errors=True)
        typer.echo(f"log {log.path} removed")
