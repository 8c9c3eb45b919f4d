"""`runnel replay PIPELINE --from LSN|TIME`: deliver again what the log still holds.

Only the sink's own record goes back; where it has none, the note in the state of from where on the log
is held. The position in the state stays: the slot was confirmed by it, and capture must refuse to start
when a recorded position lies before what is confirmed.
"""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from ..errors import Refused, RunnelError, UsageError
from .invocation import invocation

if TYPE_CHECKING:
    from ..log.api import ChangeLog
    from ..postgres.lsn import Lsn


def replay(
    ctx: typer.Context,
    name: str = typer.Argument(..., metavar="PIPELINE", help="The pipeline; it must not be running."),
    start: str = typer.Option(
        ...,
        "--from",
        metavar="LSN|TIME",
        help="From this LSN (0/16B3748), or from what was committed at this time (2026-11-18T06:43Z) on.",
    ),
) -> None:
    config = invocation(ctx).load()
    if name not in config.pipelines:
        raise UsageError(
            f"there is no pipeline {name!r}", hint=f"pipelines: {', '.join(config.pipelines) or 'none'}"
        )
    from ..log import open_log
    from ..progress.state import State
    from ..sinks.opening import open_sink
    from ..sinks.registry import SINKS, SinkContext

    log = open_log(config.log.path)
    settings = config.pipelines[name].sink
    with State.connect(config.state_url, config.source.name) as state:
        recorded = state.claim_pipeline(name, wait=0)
        context = SinkContext(name, f"{config.stages}/{name}")
        sink = SINKS[settings.type].sink(settings, context)
        with closing(sink):
            position = open_sink(sink, name, recorded, state)
            target = _target(log, start)
            # without a record everything up to the state's position was delivered once
            reached = position.lsn if sink.capabilities.holds_position else recorded.lsn
            if target > reached:
                raise Refused(
                    f"pipeline {name!r} is at {reached}: starting at {target} would leave changes out",
                    hint="give an earlier LSN or time",
                )
            # The log must still have it once nothing more can be trimmed, and only then the target moves.
            state.hold(name, target)
            try:
                _target(log, str(target))
            except RunnelError:
                state.hold(name, position.lsn if position.lsn < recorded.lsn else None)
                raise
            sink.reposition(target)
    typer.echo(_told(name, target, settings.type))


def _told(name: str, target: Lsn, sink: str) -> str:
    where = "behind what is in the files" if sink == "files" else "in its target"
    return (
        f"pipeline {name} delivers again from {target} on, at its next start:"
        f" what it had delivered from there on then stands {where} a second time"
    )


def _target(log: ChangeLog, start: str) -> Lsn:
    from ..postgres.lsn import Lsn

    try:
        lsn = Lsn.parse(start)
    except ValueError:
        return _first_commit(log, _time(start))
    try:
        next(iter(log.chunks(lsn)), None)
    except Refused as error:
        raise _too_early(log, start) from error
    return lsn


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"--from: {text!r} is neither an LSN nor a time",
            hint="for instance 0/16B3748, or 2026-11-18T06:43:00Z",
        ) from None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _first_commit(log: ChangeLog, time: datetime) -> Lsn:
    """The commit LSN of the first transaction at or after `time`."""
    import numpy as np

    from ..changes.decode import decode
    from ..postgres.lsn import Lsn

    wanted = round(time.timestamp() * 1_000_000)
    first = log.usage().first
    commits = False
    for ref in log.chunks(first) if first is not None else ():
        commits |= ref.last_time > 0
        if ref.last_time < wanted:
            continue
        with closing(log.open(ref.name)) as reader:
            if ref.start == first and reader.header.first_time > wanted:
                raise _too_early(log, time.isoformat())
            for window in decode(reader, Lsn(0)):
                late = np.flatnonzero(window.transactions.time >= wanted)
                if len(late):
                    return Lsn(int(window.transactions.lsn[late[0]]))
    if not commits:
        raise _too_early(log, time.isoformat())
    raise RunnelError(
        f"nothing in the log was committed at or after {time.isoformat()}", hint="give an earlier time"
    )


def _too_early(log: ChangeLog, what: str) -> RunnelError:
    return RunnelError(
        f"the log does not reach back to {what}: it begins at {log.usage().first}",
        hint="log.retain keeps delivered changes for replay, from the time it is set",
    )
