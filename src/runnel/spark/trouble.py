"""What went wrong with a pipeline, as one sentence with a way out, and whether it may heal.

What comes in: an exception of ours, of psycopg, of Python or of Spark; a query that ended; a change that
its sink refused. What goes out: a `RunnelError` of the right kind. Spark's own errors come as text with
the stacks of two languages in it: only the line that says what happened is kept.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from ..errors import HINT, Kind, Refused, RunnelError, Transient
from ..sinks.api import Reject

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

logger = logging.getLogger("runnel.pipeline")

JVM_ENDED = "Spark's JVM ended"
AGAIN = "it is tried again by itself; --debug shows more"

_FULL = "No space left on device"
_CAUSE = re.compile(
    r"(?:Caused by: |: )?(?:[\w$]+\.)*"
    r"(?P<name>\w*(?:Exception|Error)|Refused|Transient)(?:: (?P<text>.+))?$"
)
_OURS: dict[str, Callable[..., RunnelError]] = {
    "Refused": Refused,
    "UsageError": Refused,
    "Transient": Transient,
    "RunnelError": RunnelError,
}


def undeliverable(reject: Reject, what: str, hint: str) -> RunnelError:
    key = f" key {reject.key}" if reject.key is not None else ""
    return RunnelError(
        f"{reject.table or 'message'}{key} at {reject.lsn} {what}: {reject.reason}",
        hint=hint,
        kind=Kind.DATA,
    )


def as_error(caught: BaseException, scratch: Path) -> RunnelError:
    """What went wrong, as one sentence; what nobody foresaw may heal. `scratch`: where Spark writes."""
    if isinstance(caught, RunnelError):
        return caught
    text = " ".join(str(caught).split())
    if isinstance(caught, psycopg.OperationalError):
        return Transient(f"the state database is away: {text}", hint=AGAIN)
    if isinstance(caught, ConnectionError) or type(caught).__name__ == "Py4JNetworkError":
        return Transient(JVM_ENDED, hint=AGAIN)
    if isinstance(caught, OSError):
        return Transient(f"{caught.filename or 'I/O'}: {caught.strerror or text}", hint=AGAIN)
    if type(caught).__name__ in {"Py4JJavaError", "StreamingQueryException"}:
        return told_by_spark(str(caught), scratch)
    return Transient(f"{type(caught).__name__}: {text[:500]}", hint=AGAIN)


def query_error(query: StreamingQuery, scratch: Path) -> RunnelError:
    """A query that ended outside our own code: its planner or a worker died, or Spark itself failed."""
    return told_by_spark(str(query.exception() or ""), scratch)


def told_by_spark(text: str, scratch: Path) -> RunnelError:
    """The innermost cause; our own errors as they were raised."""
    logger.debug("Spark says:\n%s", text)
    lines = [line.strip() for line in text.splitlines()]
    number, name, words = _innermost(lines)
    if name in _OURS:
        following = lines[number + 1] if number + 1 < len(lines) else ""
        hint = following.removeprefix(HINT) if following.startswith(HINT) else ""
        return _OURS[name](words, hint=hint)
    if _FULL in text:
        return Transient(
            f"Spark cannot write to {scratch}: {_FULL}",
            hint="free some space there; nothing is lost, delivery goes on by itself",
        )
    what = f"failed: {cause(text)}" if name else "ended"
    return Transient(f"a Spark process of the query {what}", hint=AGAIN)


def cause(text: str) -> str:
    """The innermost error that a text of Spark's names, without its package; nothing if it names none."""
    _, name, words = _innermost([line.strip() for line in text.splitlines()])
    return f"{name}: {words[:300]}" if words else name


def _innermost(lines: list[str]) -> tuple[int, str, str]:
    """Its line, its name and what it says."""
    causes = [(number, found) for number, line in enumerate(lines) if (found := _CAUSE.match(line))]
    number, found = max(causes, key=_weight, default=(0, None))
    return (number, found["name"], found["text"] or "") if found is not None else (0, "", "")


def _weight(cause: tuple[int, re.Match[str]]) -> tuple[bool, bool, int]:
    """Ours first, whatever Spark wrapped around it; then the last that says something."""
    number, found = cause
    words = found["text"] or ""
    vague = words.startswith(("Traceback", "Job aborted", "Writing job aborted"))
    return found["name"] in _OURS, bool(words) and not vague, number
