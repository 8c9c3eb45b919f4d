"""What a child process tells its supervisor: one JSON object a line on the file descriptor named by
`RUNNEL_EVENTS_FD`. Without it (a process started by hand) nothing is written here.

`who` is "capture" or a pipeline's name. Kinds: `state` (state, why, error, hint), `progress`
(lsn, changes, rate, lag_bytes, lag_seconds), `done` (a bound such as --once was reached).
Events are for showing and supervising; nothing that must survive a crash depends on them.
"""

from __future__ import annotations

import json
import os
from typing import Any


def heard() -> bool:
    """Whether a supervisor listens; else whoever started this process reads what it logs."""
    return "RUNNEL_EVENTS_FD" in os.environ


def emit(kind: str, who: str, **fields: Any) -> None:
    relay({"event": kind, "who": who, **fields})


def relay(event: dict[str, Any]) -> None:
    """As it is: a supervisor hands on what its children say to whoever listens to itself."""
    fd = os.environ.get("RUNNEL_EVENTS_FD")
    if fd is None:
        return
    line = json.dumps(event, default=str) + "\n"
    try:
        os.write(int(fd), line.encode())  # one write below PIPE_BUF is atomic
    except OSError:
        return  # the supervisor is gone; the parent-death signal ends this process
