"""Log files in a local directory.

Durable before visible: fdatasync of the data, then link(2) gives the name (it fails if the name is
taken: that is the compare-and-set), then fsync of the directory. A reader can see a name between the
last two steps; the owner reports it as appended, and so lets it be acknowledged, only after both.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path

from ..errors import Refused, RunnelError
from .chunk import Source
from .spool import Spool, making_error, storage_error

SCRATCH = ("_spool", "_spark", "_stage")
"""Folders in a log's directory that others of Runnel's processes keep for what may be thrown away."""


class LocalSource:
    def __init__(self, path: str) -> None:
        self.label = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise storage_error(path, "opening", error) from error
        self.size = os.fstat(self._fd).st_size

    def read_at(self, offset: int, size: int) -> bytes:
        try:
            return os.pread(self._fd, size, offset)
        except OSError as error:
            raise storage_error(self.label, "reading", error) from error

    def read_into(self, offset: int, target: memoryview) -> int:
        done = 0
        try:
            while done < target.nbytes:
                read = os.preadv(self._fd, [target[done:]], offset + done)
                if not read:
                    break
                done += read
        except OSError as error:
            raise storage_error(self.label, "reading", error) from error
        return done

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class LocalStore:
    poll_seconds = 0.0

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)

    def _of(self, name: str) -> str:
        return f"{self.path}/{name}"

    def prepare(self) -> None:
        try:
            os.makedirs(self.path, exist_ok=True)
        except OSError as error:
            raise making_error(self.path, error) from error

    def spool(self) -> Spool:
        self.prepare()
        return Spool(self.path)

    def settle(self, spool: Spool) -> None:
        try:
            os.fdatasync(spool.fd)
        except OSError as error:
            raise storage_error(spool.path, "flushing", error) from error

    def place(self, spool: Spool, name: str) -> None:
        try:
            os.rename(spool.path, self._of(name))
        except FileNotFoundError as error:
            raise self._swept(spool.path) from error
        except OSError as error:
            raise storage_error(self._of(name), "creating", error) from error
        spool.close()

    def reveal(self, spool: Spool, name: str) -> None:
        try:
            os.link(spool.path, self._of(name))
        except FileExistsError:
            raise
        except FileNotFoundError as error:
            raise self._swept(spool.path) from error
        except OSError as error:
            if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
                raise RunnelError(
                    f"the file system of {self.path} has no hard links, which the log needs",
                    hint="put log.path on a file system with hard links (ext4, xfs, zfs, nfs), or on s3://",
                ) from error
            raise storage_error(self._of(name), "creating", error) from error
        spool.discard()

    def _swept(self, path: str) -> Refused:
        return Refused(
            f"{path} was removed while it was being written: another capture has taken over {self.path}",
            hint="let one capture own a log; `runnel status` shows which one runs",
        )

    def sync(self) -> None:
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise storage_error(self.path, "flushing", error) from error

    def names(self) -> list[str]:
        try:
            return os.listdir(self.path)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise storage_error(self.path, "listing", error) from error

    def size(self, name: str) -> int:
        return os.stat(self._of(name)).st_size

    def source(self, name: str) -> Source:
        return LocalSource(self._of(name))

    def read(self, name: str) -> bytes:
        return Path(self._of(name)).read_bytes()

    def delete(self, name: str) -> None:
        try:
            os.unlink(self._of(name))
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_error(self._of(name), "deleting", error) from error

    def stamp(self) -> object:
        try:
            return os.stat(self.path).st_mtime_ns
        except OSError:
            return 0

    def destroy(self) -> None:
        for name in SCRATCH:
            shutil.rmtree(self._of(name), ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty: somebody else's files stay
            os.rmdir(self.path)
