"""The options of the data source, as Spark hands them over: text under lower-case names."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import UsageError
from ..log.api import ChangeLog
from ..postgres.lsn import Lsn
from .admission import Limits


def log_path(options: Mapping[str, str]) -> str:
    path = options.get("log") or options.get("path")
    if not path:
        raise UsageError('where is the change log? Give its path: .option("log", "./.runnel/log")')
    return path


def limits(options: Mapping[str, str]) -> Limits:
    until = options.get("until")
    return Limits(
        max_bytes=int(options.get("max_bytes", 256 << 20)),
        linger=float(options.get("linger", "0")),
        until=Lsn.parse(until) if until else None,
    )


def start_of(log: ChangeLog, start: str) -> Lsn:
    """`earliest` and `latest` are the ends of the log as it is now; anything else is an LSN."""
    if start in {"earliest", "latest"}:
        usage = log.usage()
        return (usage.first if start == "earliest" else usage.end) or Lsn(0)
    try:
        return Lsn.parse(start)
    except ValueError as error:
        raise UsageError(
            f"start={start!r} is neither an LSN nor earliest or latest",
            hint='for instance .option("start", "0/16B3748")',
        ) from error
