"""A temporary directory that is gone afterwards, however its process ends.

A small shell of its own holds the read end of a pipe whose write end only we have: when we are gone, be
it by kill -9, it reads the end of file and removes the directory.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)

# Whoever still writes there is dying too, but may take a moment: try for ten seconds, and look once more.
_GUARD = """
read -r _ || true
n=0
while [ $n -lt 50 ]; do
  rm -rf -- "$1" 2>/dev/null
  [ -e "$1" ] || { sleep 0.3; [ -e "$1" ] || exit 0; }
  sleep 0.2
  n=$((n + 1))
done
"""


class Scratch:
    def __init__(self, prefix: str = "runnel-") -> None:
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        self.path.chmod(0o711)  # a server that runs as another user must get through to its own part
        read, self._held = os.pipe()
        try:
            self._guard = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD, "runnel-scratch", str(self.path)],
                stdin=read,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
            )
        finally:
            os.close(read)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._held >= 0:
            os.close(self._held)
            self._held = -1
            self._guard.wait()

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def die_with_parent(sign: int = signal.SIGKILL) -> Callable[[], None]:
    """For `preexec_fn`: the child gets `sign` when the thread that started it ends. It is called after
    the child has changed its user, which would clear it."""
    parent = os.getpid()

    def before_exec() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, sign)
        if os.getppid() != parent:
            os._exit(1)

    return before_exec
