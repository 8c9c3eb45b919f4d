"""`runnel status`: the source, capture, and how far each pipeline is."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table as Grid

from ..errors import counted
from ..log import open_log
from ..overview import Overview, overview
from ..progress.state import CAPTURE
from .invocation import invocation
from .terminal import console

_STYLES = {
    "live": "green",
    "streaming": "green",
    "failed": "bold red",
    "stopped": "dim",
}


def status(
    ctx: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Show the source, capture, and how far each pipeline is."""
    config = invocation(ctx).load()
    found = overview(config, open_log(config.log.path, config.log.settings()))
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=2))
    else:
        _show(found)


def _show(found: Overview) -> None:
    screen = console()
    source, capture = found.source, found.capture
    screen.print(
        f"[bold]{escape(source['name'])}[/]  PostgreSQL {source['server']}  slot {source['slot']}"
        f" ({source['wal_status']})  retained {_bytes(source['retained_bytes'])}"
    )
    grid = Grid(box=None, pad_edge=False)
    grid.add_column("")
    grid.add_column("state")
    for column in ("lsn", "behind", "seconds", "changes", "per second", "letters"):
        grid.add_column(column, justify="right")
    grid.add_column("error", overflow="fold")
    grid.add_row(
        CAPTURE,
        _state(capture["state"]),
        capture["log_lsn"] or capture["received_lsn"] or "-",
        *("",) * 5,
        escape(capture["error"] or ""),
    )
    for name, row in found.pipelines.items():
        seconds = "?" if row["lag_seconds"] is None else f"{row['lag_seconds']:.1f}"
        grid.add_row(
            escape(name),
            _state(row["state"]),
            row["lsn"],
            _bytes(row["lag_bytes"]),
            seconds,
            f"{row['changes']:,}",
            f"{row['rate']:,.0f}",
            str(row["dead_letters"]),
            escape(row["error"] or ""),
        )
    screen.print(grid)
    published = sum(1 for table in found.tables.values() if table["published"])
    tables = counted(len(found.tables), "table")
    screen.print(f"{published} of {tables} published, log {_bytes(capture['log_bytes'])}")
    for note in found.notes:
        screen.print(f"[yellow]![/] {escape(note)}")


def _state(state: str) -> str:
    return f"[{_STYLES.get(state, 'yellow')}]{escape(state)}[/]"


def _bytes(size: Any) -> str:
    if size is None:
        return "?"
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
