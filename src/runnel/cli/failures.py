"""How a command that failed ends: two lines on stderr without secrets, and an exit code."""

from __future__ import annotations

import sys
import traceback
from typing import Any

import typer

from ..errors import Kind, RunnelError, UsageError
from ..events import heard
from ..failures import explain
from ..redaction import redact


def explain_command(error: BaseException) -> RunnelError:
    if isinstance(error, typer.Abort):
        return RunnelError("stopped", hint="nothing was changed")
    if hasattr(error, "format_message"):  # click's own, whichever click typer carries
        return _wrong_usage(error)
    return explain(error)


def report(error: RunnelError, *, debug: bool, cause: BaseException | None = None) -> int:
    """Print the two lines; give the exit code."""
    if debug and cause is not None:
        print(redact("".join(traceback.format_exception(cause))), file=sys.stderr, end="")  # noqa: T201
    print(redact(f"runnel: {error.message}"), file=sys.stderr)  # noqa: T201
    if error.hint:
        print(redact(f"  → {error.hint}"), file=sys.stderr)  # noqa: T201
    if error.kind is Kind.USAGE:
        return 2
    return 3 if error.kind is Kind.REFUSED and heard() else 1


def _wrong_usage(error: Any) -> RunnelError:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "runnel"
    message = " ".join(str(error.format_message()).split()).rstrip(".")
    message = message[:1].lower() + message[1:].replace("Value error, ", "")
    hint = f"see {command} --help"
    if getattr(error, "option_name", None) in {"-c", "--config", "--debug", "--log-format"}:
        hint = f"it stands before the command: runnel {error.option_name} … {command.partition(' ')[2]}"
    return UsageError(f"{command.removeprefix('runnel').strip() or 'command line'}: {message}", hint=hint)
