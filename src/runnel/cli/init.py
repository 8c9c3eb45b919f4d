"""`runnel init`: make the subscription, or bring it up to the configuration."""

from __future__ import annotations

import signal
from typing import Annotated

import typer

from ..capture.subscription import Outcome, init_from
from ..errors import counted
from .invocation import invocation


def init(
    ctx: typer.Context,
    accept_server: Annotated[
        bool,
        typer.Option("--accept-server", help="Go on with another server, after pg_upgrade or a promotion."),
    ] = False,
) -> None:
    """Make publication, slot and Runnel's own tables; may be repeated."""
    config = invocation(ctx).load()
    # as for Ctrl-C: the server is told to stop making the slot, which may wait for long
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    outcome = init_from(config, lambda text: typer.echo(text, err=True), accept_server=accept_server)
    for line in summary(outcome):
        typer.echo(line)


def summary(outcome: Outcome) -> list[str]:
    subscription = outcome.subscription
    published = sum(table.published for table in outcome.membership.tables)
    verb = "made" if outcome.created else "ready"
    tables = counted(published, "table")
    lines = [f"subscription {subscription.name} {verb}: slot {subscription.slot}, {tables}"]
    lines += [f"  pipeline {name} begins at {lsn}" for name, lsn in outcome.registered.items()]
    for table in outcome.membership.problems():
        state = "published, but" if table.published else "not published:"
        lines.append(f"  {table.label} {state} {table.reason}")
        if table.remedy:
            lines.append(f"    → {table.remedy}")
    return lines + [f"  note: {note}" for note in outcome.notes]
