"""The command line: global options, the table of commands, and the one place where failures end.

A command lives in `cli/<name>.py` as a function of the same name (or a `typer.Typer` called `app`); it
takes a `typer.Context`, whose `obj` is the `Invocation`, and may return an exit code. Only the module of
the command that was typed is imported, so that `--help` and `version` answer at once.

Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 130 interrupted; 3 tells a supervisor that
starting again is no use. A failure is two lines on stderr: what, and what to do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from .failures import explain_command, report
from .invocation import Invocation, LogFormat, log_format_of
from .logs import setup_logging

COMMANDS = {
    "init": "Make the subscription (publication, slot) and Runnel's own tables; may be repeated.",
    "run": "Capture and deliver until stopped; --once: up to now, then end.",
    "status": "Show the source, capture, and how far each pipeline is.",
    "check": "Tell whether the source is ready, with the SQL that mends what is not.",
    "pause": "Let a pipeline rest; its position stays.",
    "resume": "Let a paused pipeline go on.",
    "remove": "Retire a pipeline, so that it no longer holds the slot.",
    "replay": "Deliver again from the log, from an LSN or a time on.",
    "dead-letters": "List, show, replay or drop changes that could not be delivered.",
    "cat": "Print what a files sink has committed: each change once, but for what a replay delivered.",
    "capture": "Only the reading half of `run`, as a process of its own.",
    "pipeline": "Only the delivering half of `run`, as a process of its own.",
    "destroy": "Remove the subscription and Runnel's own tables from the source.",
    "demo": "Stream a small shop out of an embedded PostgreSQL into files, for a first minute.",
    "bench": "Measure this machine: Runnel beside pg_recvlogical.",
    "version": "Show the version.",
}
"""Every command and the one line `--help` shows of it."""


def available() -> list[str]:
    here = Path(__file__).parent
    return [name for name in COMMANDS if (here / f"{_module(name)}.py").exists()]


def build(wanted: Sequence[str] = ()) -> typer.Typer:
    """The application with the commands of `wanted` ready to run, the others only with their names."""
    app = typer.Typer(
        name="runnel",
        help="Every committed change of a PostgreSQL database, once, in order, anywhere.",
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_globals)
    for name in available():
        if name not in wanted:
            app.command(name, help=COMMANDS[name])(_not_loaded)
            continue
        module = import_module(f"runnel.cli.{_module(name)}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name, help=COMMANDS[name])
        else:
            app.command(name, help=COMMANDS[name])(getattr(module, _module(name)))
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        command = typer.main.get_command(build(arguments))
        code = command.main(arguments or ["--help"], prog_name="runnel", standalone_mode=False)
        code = code if arguments else 2
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # `runnel cat … | head`: whoever read us has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except Exception as error:  # noqa: BLE001 - the one place where every failure becomes two lines
        if type(error).__name__ == "NoArgsIsHelpError":  # a group of commands without one of them
            typer.echo(str(error))
            sys.exit(2)
        code = report(explain_command(error), debug=_debug(arguments), cause=error)
    sys.exit(code if isinstance(code, int) else 0)


def _show_version(wanted: bool) -> None:
    if wanted:
        from .version import version

        version()
        raise typer.Exit


def _globals(
    ctx: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option("-c", "--config", metavar="FILE", help="Configuration file; default: ./runnel.yaml."),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and debug lines.")] = False,
    log_format: Annotated[
        LogFormat | None, typer.Option(help="Log lines for people or for machines; default: human.")
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version.")
    ] = False,
) -> None:
    log_format = log_format or log_format_of(os.environ)
    debug = debug or _debug(())
    ctx.obj = Invocation(config, debug, log_format)
    ctx.obj.hand_down()
    setup_logging(log_format, debug=debug)


def _not_loaded() -> Any:
    raise AssertionError("only the typed command is ever called")


def _debug(arguments: Sequence[str]) -> bool:
    return "--debug" in arguments or os.environ.get("RUNNEL_DEBUG", "") not in ("", "0")


def _module(name: str) -> str:
    return name.replace("-", "_")
