"""Named points where tests make Runnel fail. Without `RUNNEL_FAILPOINTS` a point costs one `if`.

`RUNNEL_FAILPOINTS="log.chunk.written=kill@3;sink.committed=raise"`: the third time the process
passes `log.chunk.written` it kills itself with SIGKILL; at `sink.committed` it raises.
Actions: `kill`, `raise` (a transient error), `hang`. With `RUNNEL_FAILPOINTS_ONCE=DIR` an action
happens once over all processes and restarts (a marker file in DIR remembers it).
"""

from __future__ import annotations

import os
import signal
import time

from .errors import Transient

_SPEC = os.environ.get("RUNNEL_FAILPOINTS", "")
_points: dict[str, tuple[str, int]] = {}
_passed: dict[str, int] = {}
for _item in filter(None, _SPEC.split(";")):
    _name, _, _what = _item.partition("=")
    _action, _, _nth = _what.partition("@")
    _points[_name.strip()] = (_action.strip(), int(_nth or 1))


def failpoint(name: str) -> None:
    if _points and name in _points:
        _hit(name)


def _hit(name: str) -> None:
    action, nth = _points[name]
    _passed[name] = _passed.get(name, 0) + 1
    if _passed[name] != nth or not _first_time(name):
        return
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "hang":
        time.sleep(3600)
    raise Transient(f"failpoint {name}", hint="unset RUNNEL_FAILPOINTS")


def _first_time(name: str) -> bool:
    directory = os.environ.get("RUNNEL_FAILPOINTS_ONCE")
    if not directory:
        return True
    try:
        os.close(os.open(os.path.join(directory, name), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
