"""Wait for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def await_condition(
    condition: Callable[[], T], timeout: float = 30.0, *, every: float = 0.02, what: str = ""
) -> T:
    """Call `condition` until it returns something true, and return that. AssertionError in the end."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            name = what or getattr(condition, "__name__", repr(condition))
            raise AssertionError(f"not within {timeout} s: {name} (last seen: {value!r})")
        time.sleep(every)
