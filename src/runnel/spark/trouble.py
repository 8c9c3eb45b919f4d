"""What went wrong with a pipeline, as one sentence with a way out, and whether it may heal.

What comes in: an exception of ours, of psycopg, of Python or of Spark; a query that ended; a change that
its sink refused. What goes out: a `RunnelError` of the right kind. Spark's own errors come as text with the
JVM's stack in it: only the line that says what happened is kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from ..errors import Kind, Refused, RunnelError, Transient
from ..sinks.api import Reject

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

JVM_ENDED = "Spark's JVM ended"
_FULL = "No space left on device"


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
        return Transient(f"the state database is away: {text}", hint="it is tried again by itself")
    if isinstance(caught, ConnectionError) or type(caught).__name__ == "Py4JNetworkError":
        return Transient(JVM_ENDED)
    if isinstance(caught, OSError):
        return Transient(f"{caught.filename or 'I/O'}: {caught.strerror or text}")
    if _FULL in text:
        return _full(scratch)
    return Transient(f"{type(caught).__name__}: {_said(str(caught)) or text[:500]}")


def query_error(query: StreamingQuery, scratch: Path) -> RunnelError:
    """A query that ended outside our own code: its planner or a worker died, or Spark itself failed."""
    exception = query.exception()
    text = str(exception) if exception is not None else ""
    for line in reversed(text.splitlines()):
        name, _, message = line.strip().partition(": ")
        if name.rsplit(".", 1)[-1] in {"Refused", "UsageError"}:
            return Refused(message)
    if _FULL in text:
        return _full(scratch)
    told = _said(text)
    return Transient(f"a Spark process of the query ended{': ' + told if told else ''}")


def _full(scratch: Path) -> RunnelError:
    return Transient(
        f"Spark cannot write to {scratch}: {_FULL}",
        hint="free some space there; nothing is lost, delivery goes on by itself",
    )


def _said(text: str) -> str:
    lines = (line.strip().removeprefix(": ") for line in text.splitlines())
    return next((line[:300] for line in lines if "Exception" in line or "Error" in line), "")
