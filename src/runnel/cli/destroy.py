"""`runnel destroy`: leave nothing behind, neither at the source nor in the log's place."""

from __future__ import annotations

import typer

from ..capture import subscription
from ..progress.state import State
from .invocation import invocation


def destroy(ctx: typer.Context) -> None:
    """Remove the subscription, Runnel's own tables and the change log; may be repeated."""
    config = invocation(ctx).load()
    name = config.source.name
    with State.connect(config.state_url, name) as state:
        subscription.destroy(config.source_url, state, name, typer.echo)
