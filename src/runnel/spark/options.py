"""The options of the data source, as Spark hands them over: text under lower-case names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from ..errors import UsageError
from ..log.api import ChangeLog
from ..postgres.lsn import Lsn
from ..settings import parse_size
from .admission import Limits


def log_path(options: Mapping[str, str]) -> str:
    path = options.get("log") or options.get("path")
    if not path:
        raise UsageError('where is the change log? Give its path: .option("log", "./.runnel/log")')
    return path


def limits(options: Mapping[str, str]) -> Limits:
    return Limits(
        max_bytes=_parsed(options, "max_bytes", _size, "a size such as 64MiB") or Limits().max_bytes,
        linger=_parsed(options, "linger", float, "seconds such as 0.5") or 0.0,
        until=_parsed(options, "until", Lsn.parse, "an LSN such as 0/16B3748"),
    )


def tasks(options: Mapping[str, str]) -> int:
    return max(1, _parsed(options, "tasks", int, "a number of tasks") or 2)


T = TypeVar("T")


def _parsed(options: Mapping[str, str], name: str, parse: Callable[[str], T], what: str) -> T | None:
    text = options.get(name)
    try:
        return None if text is None else parse(text)
    except ValueError as error:
        raise UsageError(
            f"{name}={text!r} is not {what}", hint=f'.option("{name}", …) is {what}'
        ) from error


def _size(text: str) -> int:
    size = parse_size(text)
    if not size:
        raise ValueError("nothing would fit")
    return size


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
