"""`runnel check`: is the source ready, and with which SQL does it become so?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table as Grid

from ..capture.membership import TORN, torn, torn_remedy, wanted
from ..capture.publication import check_publication, read_publication
from ..capture.slot import read_slot
from ..errors import Refused, RunnelError, counted
from ..postgres import catalog
from ..postgres.connect import Connection, connect
from ..postgres.patterns import TablePatterns
from ..postgres.preflight import (
    Finding,
    Level,
    Needs,
    replication_finding,
    server_findings,
    table_findings,
)
from ..progress.records import Subscription
from ..progress.state import State
from .invocation import invocation
from .terminal import console

if TYPE_CHECKING:
    from ..config import Config

_SHOWN = 10
"""Tables named in one line; `--json` has them all."""
_STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.BLOCK: "bold red"}


def check(
    ctx: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> int:
    """Tell whether the source is ready, with the SQL that mends what is not."""
    config = invocation(ctx).load()
    findings = list(_findings(config))
    blocked = any(finding.level is Level.BLOCK for finding in findings)
    if as_json:
        typer.echo(json.dumps({"ready": not blocked, "findings": [asdict(f) for f in findings]}, indent=2))
    else:
        _show(findings)
    return 1 if blocked else 0


def _findings(config: Config) -> Iterator[Finding]:
    name = config.source.name
    subscription, finding = _state(config)
    slot = None if subscription is None else subscription.slot
    with connect(config.source_url, f"runnel {name} check") as source:
        here = config.state_url == config.source_url
        needs = Needs(name, slot, config.source.failover, here, config.source.messages)
        yield from server_findings(source, needs)
        yield replication_finding(config.source_url)
        if finding is not None:
            yield finding
        yield from _publication(source, name, subscription)
        patterns = TablePatterns(config.source.tables)
        found = catalog.tables(source)
        missing = [
            p.text for p in patterns.literals() if not any(p.matches(t.schema, t.name) for t in found)
        ]
        yield from table_findings(wanted(found, patterns), missing)
        for leaf, root in torn(found, patterns):
            remedy = f"-- {torn_remedy(leaf, root)}"
            yield Finding(Level.BLOCK, leaf.label, f"excluded, but {TORN}", remedy)


def _publication(source: Connection, name: str, subscription: Subscription | None) -> Iterator[Finding]:
    """What capture would refuse."""
    found = read_publication(source, name)
    if subscription is not None and subscription.complete:
        slot = read_slot(source, subscription.slot)
        since = subscription.consistent_lsn if slot is None else slot.confirmed
        try:
            check_publication(subscription, found, since, may_be_altered=True)
        except Refused as error:
            yield Finding(Level.BLOCK, "publication", error.message, f"-- {error.hint}")
            return
    if found is None or found.id is None:
        return
    for deviation in found.deviations():
        yield Finding(
            Level.BLOCK,
            "publication",
            f"{name} was altered and {deviation}",
            "-- runnel init sets it right",
        )


def _state(config: Config) -> tuple[Subscription | None, Finding | None]:
    """What Runnel's own tables know, and what is to be said of them or of a state kept elsewhere."""
    apart = config.state_url != config.source_url
    try:
        with State.connect(config.state_url, config.source.name) as state:
            subscription = state.subscription()
    except Refused as error:
        return None, Finding(Level.BLOCK, "state", error.message, f"-- {error.hint}")
    except RunnelError as error:
        if not apart:
            raise
        return None, Finding(Level.BLOCK, "state.url", f"{error.message} ({error.hint})")
    finding = Finding(Level.OK, "state.url", "reached") if apart else None
    return subscription, finding


def _show(findings: list[Finding]) -> None:
    grid = Grid(box=None, pad_edge=False, show_header=False)
    for column in ("level", "subject"):
        grid.add_column(column, no_wrap=True)
    grid.add_column("message", overflow="fold")
    for level in (Level.BLOCK, Level.WARN, Level.OK):
        for finding in (f for f in _compact(findings) if f.level is level):
            style = _STYLES[level]
            grid.add_row(f"[{style}]{level}[/]", escape(finding.subject), escape(finding.message))
            if finding.sql:
                grid.add_row("", "", f"[dim]→[/] {escape(finding.sql)}")
    console().print(grid)


def _compact(findings: list[Finding]) -> Iterator[Finding]:
    """Good tables of which there is the same to say share a line."""
    alike: dict[str, list[str]] = {}
    for finding in findings:
        if finding.level is Level.OK and finding.identity is not None:
            alike.setdefault(finding.message, []).append(finding.subject)
        else:
            yield finding
    for message, names in alike.items():
        shown = ", ".join(names[:_SHOWN]) + (" …" if len(names) > _SHOWN else "")
        yield Finding(Level.OK, counted(len(names), "table"), f"{message}: {shown}")
