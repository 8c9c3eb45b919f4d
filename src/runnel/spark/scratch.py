"""Where a driver keeps what may be thrown away: checkpoints, Spark's local files, its log.

One directory per process under `<log>/_spark` (a log that is not a local directory: under the
machine's temporary directory). A process that was killed leaves its own behind; the next one sees
that nobody holds its lock and removes it.

What must hold: where others may write beside us, the directory is ours alone (0700), or it is refused:
its name can be guessed, and whoever made it first could swap what Spark is about to load.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import Refused


@contextmanager
def scratch_directory(log_path: str) -> Iterator[Path]:
    home = _home(log_path)
    if _is_local(log_path):
        home.mkdir(parents=True, exist_ok=True)
    else:
        _make_ours(home)
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
    if not _is_local(log_path):
        return Path(tempfile.gettempdir()) / f"runnel-spark-{os.getuid()}"
    return Path(log_path.removeprefix("file://")).absolute() / "_spark"


def _is_local(log_path: str) -> bool:
    return "://" not in log_path or log_path.startswith("file://")


def _make_ours(home: Path) -> None:
    """A directory in a place that all may write to."""
    with suppress(FileExistsError):
        home.mkdir(mode=0o700)
    found = home.lstat()
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not ours or stat.S_IMODE(found.st_mode) & 0o077:
        raise Refused(
            f"{home} is not a directory of ours alone (owner {found.st_uid}, mode"
            f" {stat.S_IMODE(found.st_mode):04o}): somebody else could change what Spark reads there",
            hint=f"chmod 700 {home}"
            if ours
            else f"remove {home}, or set TMPDIR to a directory of your own",
        )


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
