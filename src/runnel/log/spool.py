"""The file a chunk is written into before it has a name, and how storage's errors read to a user."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile

from ..errors import RunnelError, Transient

TEMPORARY = ".chunk-"


class Spool:
    """A file being filled that nobody sees. What becomes of it is its store's matter."""

    def __init__(self, directory: str, *, named: bool = True) -> None:
        try:
            self.fd, self.path = tempfile.mkstemp(prefix=TEMPORARY, suffix=".tmp", dir=directory)
            os.fchmod(self.fd, 0o640)
            if not named:
                os.unlink(self.path)  # read through its descriptor only; dies with the process
        except OSError as error:
            raise storage_error(directory, "creating a file in", error) from error

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        """All of `data`, or an error that names the file; writing it again is harmless."""
        view = memoryview(data)
        try:
            while view.nbytes:
                written = os.pwrite(self.fd, view, offset)
                offset += written
                view = view[written:]
        except OSError as error:
            raise storage_error(self.path, "writing", error) from error

    def read_at(self, offset: int, size: int) -> bytes:
        try:
            return os.pread(self.fd, size, offset)
        except OSError as error:
            raise storage_error(self.path, "reading", error) from error

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self.fd, size)
        except OSError as error:
            raise storage_error(self.path, "writing", error) from error

    @property
    def closed(self) -> bool:
        return self.fd < 0

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def discard(self) -> None:
        self.close()
        with contextlib.suppress(OSError):
            os.unlink(self.path)


_NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EROFS, errno.ENAMETOOLONG)


def making_error(path: str, error: OSError) -> RunnelError:
    """`storage_error` of making the log's directory. Waiting makes no place where none can be."""
    if error.errno in _NOWHERE:
        return RunnelError(
            f"log.path {path} cannot be made: {error.strerror or error}",
            hint="set log.path to a directory on a file system that the user that runs Runnel may write to",
        )
    return storage_error(path, "creating", error)


def storage_error(path: str, doing: str, error: OSError) -> RunnelError:
    """The error a user sees for what the storage said, naming the path."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Transient(
            f"no space left while {doing} {path}",
            hint="free space on that file system, lower log.max_bytes, or move the log (log.path)",
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return RunnelError(
            f"{path} does not permit {doing}: {error.strerror or error}",
            hint="give the user that runs Runnel write access to the log directory, or set log.path",
        )
    return Transient(
        f"storage error while {doing} {path}: {error.strerror or error}",
        hint="look at the disk or object store behind log.path; Runnel tries again by itself",
    )
