"""`runnel run`: capture and pipelines under one supervisor."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UsageError
from .failures import explain_command, report
from .invocation import LogFormat, invocation

if TYPE_CHECKING:
    from ..config import Config

logger = logging.getLogger("runnel.run")


def run(
    ctx: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PIPELINE…]", help="Only these pipelines; default: all that are configured."
        ),
    ] = None,
    once: bool = typer.Option(
        False, "--once", help="Deliver everything committed up to now, acknowledge it, and end."
    ),
    source: str | None = typer.Option(
        None, "--source", metavar="URL", help="The source's URL: together with --sink no file is needed."
    ),
    sink: str | None = typer.Option(
        None, "--sink", metavar="TYPE,KEY=VALUE", help="Where to write: stdout, files,path=out, or a URL."
    ),
) -> int:
    called = invocation(ctx)
    overrides: dict[str, Any] = {}
    if source is not None:
        overrides["source.url"] = source
    without_file = called.config is None and source is not None
    if sink is not None:
        from ..config.flags import sink_from_flag

        overrides["pipelines.runnel.sink"] = sink_from_flag(sink)
        without_file = called.config is None
        if without_file and source is None and not os.environ.get("RUNNEL_SOURCE_URL"):
            raise UsageError(
                "--sink needs a source",
                hint="runnel run --source URL --sink stdout; or give the URL in RUNNEL_SOURCE_URL",
            )
    config = called.load(overrides, file=not without_file)
    if source is not None:
        _warn_of_password(source)
    chosen = _chosen(config, names, None if sink is None else "runnel")

    from ..supervisor.supervisor import Supervisor

    to_stdout = any(config.pipelines[name].sink.type == "stdout" for name in chosen)
    plain = called.log_format is LogFormat.JSON or (to_stdout and sys.stdout.isatty())
    supervisor = Supervisor(config, chosen, once=once, plain=plain)
    slot: list[str] = []
    try:
        code = supervisor.run(lambda: slot.append(_prepare(config)))
    except Exception as error:
        if not (without_file and slot):
            raise
        # the two lines of a failure come before the line that must be the last
        code = report(explain_command(error), debug=called.debug, cause=error)
    if without_file and slot:
        sys.stderr.write(
            f"replication slot {slot[-1]} stays on the source and holds its WAL;"
            f" to remove it: {_removal(config.source_url)}\n"
        )
    return code


def _warn_of_password(url: str) -> None:
    from ..postgres.connect import parse_url

    if parse_url(url).get("password"):
        logger.warning(
            "every user of this machine can read the password in --source while this runs:"
            " give the URL in RUNNEL_SOURCE_URL, or the password in PGPASSWORD or ~/.pgpass"
        )


def _removal(url: str) -> str:
    """The command that undoes a run without a file: it must not read a ./runnel.yaml that is there."""
    from ..config import DEFAULT_FILE
    from ..postgres.connect import parse_url, without_secrets

    password = "PGPASSWORD=… " if parse_url(url).get("password") else ""
    no_file = "-c /dev/null " if DEFAULT_FILE.exists() else ""
    return f"{password}RUNNEL_SOURCE_URL={shlex.quote(without_secrets(url))} runnel {no_file}destroy"


def _chosen(config: Config, names: list[str] | None, from_flags: str | None) -> list[str]:
    chosen = names or ([from_flags] if from_flags else list(config.pipelines))
    unknown = [name for name in chosen if name not in config.pipelines]
    if unknown:
        raise UsageError(
            f"there is no pipeline {unknown[0]!r}",
            hint=f"pipelines: {', '.join(config.pipelines) or 'none'}",
        )
    if not chosen:
        raise UsageError("no pipeline is configured", hint="add one under `pipelines`, or give --sink")
    return list(dict.fromkeys(chosen))


def _prepare(config: Config) -> str:
    """The implied `init`, which passes no gap: only a user may want that. Gives the slot's name."""
    import psycopg

    from ..capture.subscription import init_from
    from ..failures import explain

    try:
        outcome = init_from(config, lambda text: logger.info("%s", text), mend=False)
    except psycopg.Error as error:
        raise explain(error) from error
    for note in outcome.notes:
        logger.warning("%s", note)
    for table in outcome.membership.problems() if outcome.created else ():
        logger.warning("%s: %s (%s)", table.label, table.reason, table.remedy or "see runnel check")
    return outcome.subscription.slot
