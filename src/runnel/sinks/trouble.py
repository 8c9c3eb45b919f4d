"""An `OSError` of a sink, told to a user: which path, what to do, and whether waiting may heal it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import RunnelError, Transient

_FULL = {errno.ENOSPC, errno.EDQUOT}
_LASTING = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG}


@contextmanager
def told(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise explained(error, path) from error


def explained(error: OSError, path: str) -> RunnelError:
    if (file := _file_in_the_way(error, path)) is not None:
        return RunnelError(
            f"cannot write to {path}: {file} is a file", hint="give the sink a directory: set its `path`"
        )
    what = f"cannot write to {path}: {error.strerror or error}"
    if error.errno in _FULL:
        return Transient(what, hint="free some space there; nothing is lost, delivery goes on by itself")
    if error.errno in _LASTING:
        return RunnelError(what, hint="make the directory writable for the user that runs Runnel")
    return Transient(what, hint="check the file system; delivery is tried again by itself")


def _file_in_the_way(error: OSError, path: str) -> str | None:
    """The file where a directory has to be: at `path` or above it, or what the system named."""
    if error.errno not in (errno.ENOTDIR, errno.EEXIST) and "Not a directory" not in str(error):
        return None
    for named in (path, error.filename):
        at = named if isinstance(named, str) and "://" not in named else ""
        while at and at != os.path.dirname(at):
            if os.path.isfile(at):
                return at
            at = os.path.dirname(at)
    return None
