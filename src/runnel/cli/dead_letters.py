"""`runnel dead-letters`: what a sink could not take; to look at, to deliver again and to drop."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table as Grid

from ..errors import RunnelError, UsageError, counted
from ..postgres.lsn import Lsn
from ..postgres.patterns import label_of
from ..progress.letters import Letter
from .invocation import invocation
from .known import PipelineName, known_state
from .terminal import console

if TYPE_CHECKING:
    from ..config import Config
    from ..progress.state import State

_OP = re.compile(r'\{"op":"(\w+)"')
app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Pipeline = Annotated[str | None, typer.Argument(metavar="[PIPELINE]", help="Only of this pipeline.")]
OfTable = Annotated[
    str | None,
    typer.Option(
        "--table",
        parser=label_of,
        metavar="TEXT",
        help='Only of this table: schema.table, a name that holds a dot in quotes: "a.b".c.',
    ),
]
OfKey = Annotated[str | None, typer.Option("--key", help="Only of this key, as `list` shows it.")]
AsJson = Annotated[bool, typer.Option("--json", help="For machines: one object a line.")]
At = Annotated[str, typer.Argument(metavar="LSN:SEQ", help="One letter, as `list` names it.")]


@app.command("list")
def list_letters(
    ctx: typer.Context,
    pipeline: Pipeline = None,
    table: OfTable = None,
    key: OfKey = None,
    limit: Annotated[int, typer.Option(help="Most letters to show.", min=1)] = 100,
    as_json: AsJson = False,
) -> None:
    """List letters: when, which change, why."""
    config = invocation(ctx).load()
    with known_state(config) as state:
        _known(pipeline, config, state)
        found = state.letters(pipeline, table=table, key=key, limit=None if as_json else limit + 1)
    if as_json:
        for letter in found:
            typer.echo(json.dumps(_plain(letter), ensure_ascii=False))
        return
    if not found:
        typer.echo("no dead letters" + _of(pipeline, table, key))
        return
    grid = Grid(box=None, pad_edge=False)
    for column in ("pipeline", "stored", "letter", "op", "table", "key", "reason"):
        grid.add_column(column, overflow="fold", no_wrap=column in ("stored", "letter", "op"))
    for letter in found[:limit]:
        grid.add_row(*map(escape, _cells(letter)))
    console().print(grid)
    if len(found) > limit:
        typer.echo("… and more: --limit, or --json for all of them", err=True)


@app.command()
def show(ctx: typer.Context, pipeline: PipelineName, letter: At) -> None:
    """Show one letter whole: the change in Runnel's JSON, and the reason."""
    lsn, seq = _parse(letter)
    config = invocation(ctx).load()
    with known_state(config) as state:
        _known(pipeline, config, state)
        found = [x for x in state.letters(pipeline) if (x.lsn, x.seq) == (lsn, seq)]
    if not found:
        raise UsageError(f"pipeline {pipeline!r} has no letter {letter}", hint="runnel dead-letters list")
    typer.echo(found[0].change)
    typer.echo(f"{found[0].stored_at:%F %T}Z {found[0].reason}", err=True)


@app.command()
def replay(ctx: typer.Context, pipeline: PipelineName, table: OfTable = None, key: OfKey = None) -> None:
    """Deliver letters again, in order, and let their keys go on; the pipeline must not be running."""
    config = invocation(ctx).load()
    if pipeline not in config.pipelines:
        known = ", ".join(config.pipelines) or "none"
        raise UsageError(f"there is no pipeline {pipeline!r}", hint=f"pipelines: {known}")
    from ..log import open_log
    from ..redelivery import Redelivery

    with known_state(config) as state:
        settings = config.pipelines[pipeline].sink
        log = open_log(config.log.path)
        redelivery = Redelivery(state, log, pipeline, settings, config.stages)
        done = redelivery.run(table=table, key=key)
    # stdout may be the sink
    typer.echo(f"{counted(done.delivered, 'letter')} delivered", err=True)
    if done.found:
        typer.echo(f"{_are(done.found, 'was', 'were')} delivered by a replay that did not end", err=True)
    if done.rejected:
        first = done.rejected[0]
        of = (first.table or "message") + (f" key {first.key}" if first.key is not None else "")
        left = len(done.rejected) + done.behind + done.ahead
        raise RunnelError(
            f"{_are(left)} left: {of} at {first.lsn} cannot be delivered: {first.reason}",
            hint="mend the cause and replay again, or `runnel dead-letters drop` what shall not come",
        )
    if done.ahead:
        raise RunnelError(
            f"{_are(done.ahead)} left: pipeline {pipeline!r} has not passed them yet",
            hint="run it until it has (`runnel run --once`), then replay again",
        )


@app.command()
def drop(
    ctx: typer.Context,
    pipeline: PipelineName,
    letter: Annotated[str | None, typer.Argument(metavar="[LSN:SEQ]", help="Only this letter.")] = None,
    table: OfTable = None,
    key: OfKey = None,
    everything: Annotated[bool, typer.Option("--all", help="Every letter of the pipeline.")] = False,
) -> None:
    """Forget letters for good; keys without letters are delivered again from then on."""
    if not (letter or table or key or everything):
        raise UsageError("which letters?", hint="name one (LSN:SEQ), --table, --key, or --all")
    config = invocation(ctx).load()
    with known_state(config) as state:
        _known(pipeline, config, state)
        at = [_parse(letter)] if letter else None
        count = state.drop_letters(pipeline, table=table, key=key, at=at)
    typer.echo(f"{counted(count, 'letter')} dropped")


def _are(count: int, one: str = "is", more: str = "are") -> str:
    return f"{counted(count, 'letter')} {one if count == 1 else more}"


def _known(pipeline: str | None, config: Config, state: State) -> None:
    """The configured ones, those started without a file, and those whose letters were kept."""
    known = dict.fromkeys((*config.pipelines, *state.pipelines(), *state.letter_counts()))
    if pipeline is not None and pipeline not in known:
        raise UsageError(
            f"there is no pipeline {pipeline!r}", hint=f"pipelines: {', '.join(known) or 'none'}"
        )


def _of(pipeline: str | None, table: str | None, key: str | None) -> str:
    """What was asked for: a word in it may be misspelt."""
    named = (("pipeline", pipeline), ("table", table), ("key", key))
    return ",".join(f" of {what} {value}" for what, value in named if value is not None)


def _cells(letter: Letter) -> tuple[str, ...]:
    op = _OP.match(letter.change)
    return (
        letter.pipeline,
        f"{letter.stored_at:%F %T}Z",
        _name(letter),
        op[1] if op else "-",
        letter.table or "-",
        letter.key or "-",
        letter.reason,
    )


def _name(letter: Letter) -> str:
    return f"{letter.lsn}:{letter.seq}"


def _parse(text: str) -> tuple[Lsn, int]:
    lsn, _, seq = text.rpartition(":")
    try:
        return Lsn.parse(lsn), int(seq)
    except ValueError:
        raise UsageError(f"{text!r} is not a letter", hint="as in 0/16B3748:3, from `list`") from None


def _plain(letter: Letter) -> dict[str, Any]:
    return {
        "pipeline": letter.pipeline,
        "lsn": str(letter.lsn),
        "seq": letter.seq,
        "table": letter.table,
        "key": letter.key,
        "reason": letter.reason,
        "stored_at": letter.stored_at.isoformat(),
        "change": letter.change,
    }
