"""Where a driver keeps what may be thrown away: checkpoints, Spark's local files, its log.

One directory per process under `<log>/_spark` (a log that is not a local directory: under the
machine's temporary directory). A process that was killed leaves its own behind; the next one sees
that nobody holds its lock and removes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch_directory(log_path: str) -> Iterator[Path]:
    home = _home(log_path)
    home.mkdir(parents=True, exist_ok=True)
    _sweep(home)
    own = home / f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
    own.mkdir(mode=0o700)
    lock = os.open(own / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)
        os.close(lock)


def _home(log_path: str) -> Path:
    if "://" in log_path and not log_path.startswith("file://"):
        return Path(tempfile.gettempdir()) / f"runnel-spark-{os.getuid()}"
    return Path(log_path.removeprefix("file://")).absolute() / "_spark"


def _sweep(home: Path) -> None:
    for left in home.iterdir():
        try:
            lock = os.open(left / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # being made, or being removed
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # its process lives
        else:
            shutil.rmtree(left, ignore_errors=True)
        finally:
            os.close(lock)
