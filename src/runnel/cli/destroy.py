"""`runnel destroy`: leave nothing behind, neither at the source nor in the log's place.

What must hold: a change log is removed only if it is this subscription's. Where the state no longer knows
one (a destroy that is repeated), the log says itself whose it is: of this server, and of a slot that is
gone. Another source may be configured with the same name and the same path.
"""

from __future__ import annotations

import shutil
from typing import Annotated

import typer

from ..capture.removal import destroy as remove
from ..capture.slot import slot_exists
from ..config import Config
from ..log import open_log
from ..log.api import Lineage
from ..postgres import catalog
from ..postgres.connect import connect
from ..progress.records import Subscription
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
        state.migrate()
        known = state.subscription()
        remove(config.source_url, state, name, typer.echo, force=force)
    # a log of this subscription is of no use any more, and another one may not go on in it
    log = open_log(config.log.path, config.log.settings())
    lineage = log.lineage()
    if lineage is None:
        return
    reason = _not_ours(config, known, lineage)
    if reason:
        typer.echo(f"log {log.path} is left as it is: {reason}")
        return
    log.destroy()
    shutil.rmtree(config.stages, ignore_errors=True)
    typer.echo(f"log {log.path} removed")


def _not_ours(config: Config, known: Subscription | None, lineage: Lineage) -> str:
    """Why the log must stay; empty if it is this subscription's."""
    whose = f"it is of slot {lineage.slot} on system {lineage.system_id}"
    if known is not None:
        return "" if known.owns(lineage) else whose
    if lineage.slot.rpartition("_")[0] != config.source.name:
        return whose
    with connect(config.source_url, f"runnel {config.source.name} destroy") as source:
        if catalog.server(source).system_id != lineage.system_id:
            return whose
        return f"{whose}, which still exists" if slot_exists(source, lineage.slot) else ""
