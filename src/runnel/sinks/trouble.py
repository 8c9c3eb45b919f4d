"""An `OSError` of a sink, told to a user: which path, what to do, and whether waiting may heal it."""

from __future__ import annotations

import errno
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
    what = f"cannot write to {path}: {error.strerror or error}"
    if error.errno in _FULL:
        return Transient(what, hint="free some space there; nothing is lost, delivery goes on by itself")
    if error.errno in _LASTING:
        return RunnelError(what, hint="make the directory writable for the user that runs Runnel")
    return Transient(what, hint="check the file system; delivery is tried again by itself")
