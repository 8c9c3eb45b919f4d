"""What went wrong with a pipeline, as one sentence with a way out, and whether it may heal.

What comes in: an exception of ours, of psycopg, of Python or of Spark; a query that ended; a change that
its sink refused. What goes out: a `RunnelError` of the right kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from ..errors import Kind, Refused, RunnelError, Transient
from ..sinks.api import Reject

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

JVM_ENDED = "Spark's JVM ended"


def undeliverable(reject: Reject, what: str, hint: str) -> RunnelError:
    key = f" key {reject.key}" if reject.key is not None else ""
    return RunnelError(
        f"{reject.table or 'message'}{key} at {reject.lsn} {what}: {reject.reason}",
        hint=hint,
        kind=Kind.DATA,
    )


def as_error(caught: BaseException) -> RunnelError:
    """What went wrong, as one sentence; what nobody foresaw may heal."""
    if isinstance(caught, RunnelError):
        return caught
    text = " ".join(str(caught).split())
    if isinstance(caught, psycopg.OperationalError):
        return Transient(f"the state database is away: {text}", hint="it is tried again by itself")
    if isinstance(caught, ConnectionError) or type(caught).__name__ == "Py4JNetworkError":
        return Transient(JVM_ENDED)
    if isinstance(caught, OSError):
        return Transient(f"{caught.filename or 'I/O'}: {caught.strerror or text}")
    return Transient(f"{type(caught).__name__}: {text[:500]}")


def query_error(query: StreamingQuery) -> RunnelError:
    """A query that ended outside our own code: its planner or a worker died, or Spark itself failed."""
    exception = query.exception()
    text = str(exception) if exception is not None else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        name, _, message = line.partition(": ")
        if name.rsplit(".", 1)[-1] in {"Refused", "UsageError"}:
            return Refused(message)
    told = next((line for line in lines if "Exception" in line or "Error" in line), "")
    return Transient(f"a Spark process of the query ended{': ' + told[:300] if told else ''}")
