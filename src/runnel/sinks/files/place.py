"""Where the output lies: a local directory, or an object store through pyarrow's file systems.

Names are relative to the output's root, with `/`. What must hold: `replace` is atomic and durable
when it returns; nothing under a data name is visible half written, except where a local file grows.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import IO, Any, Protocol

from ...errors import Transient
from ..transfer import write_all
from ..trouble import told
from .names import LOCK, OWN, STAGE, number_of

_PATIENCE = 60.0
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class StageFile(Protocol):
    """A piece being staged: written from its beginning to its end by one task."""

    def write(self, data: bytes | memoryview) -> None: ...

    def close(self, *, durable: bool) -> None: ...


class Place(Protocol):
    root: str

    def make(self) -> None: ...

    def lock(self) -> AbstractContextManager[None]:
        """A context: one process at a time opens or commits, where the place can tell."""
        ...

    def read(self, name: str) -> bytes | None: ...

    def replace(self, name: str, data: bytes) -> None: ...

    def data_names(self) -> list[str]:
        """What this output has or may have written. A folder with a record of its own is another output:
        nothing in it is ours."""
        ...

    def size(self, name: str) -> int | None: ...

    def remove(self, name: str) -> None: ...

    def sweep(self) -> None:
        """Remove everything that is staged."""
        ...

    def stage(self, name: str) -> StageFile: ...

    def source(self, name: str) -> Any:
        """A pyarrow random-access file."""
        ...

    def create(self, name: str, staged: str) -> AbstractContextManager[Any]:
        """A stream to write a whole data file to; it is there, durably, when the context ends well.
        `staged` is where it may be put together."""
        ...

    def publish(self, staged: str, name: str) -> None:
        """Give a staged file its data name, durably. The staged one stays until it is removed."""
        ...


class LocalPlace:
    def __init__(self, root: str) -> None:
        self.root = root

    def path(self, name: str) -> str:
        return os.path.join(self.root, name)

    def make(self) -> None:
        with told(self.root):
            os.makedirs(self.path(STAGE), exist_ok=True)

    @contextmanager
    def lock(self) -> Iterator[None]:
        # A mutex, not ownership: that is the epoch's. So a later owner need not wait for an earlier
        # one to die, and an earlier one cannot be in the middle of a commit when the later one opens.
        with told(self.root):
            fd = os.open(self.path(LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            deadline = time.monotonic() + _PATIENCE
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise Transient(
                            f"another process has held {self.path(LOCK)} for {_PATIENCE:.0f} s",
                            hint="stop the other process that writes to this path",
                        ) from None
                    time.sleep(0.02)
            yield
        finally:
            os.close(fd)

    def read(self, name: str) -> bytes | None:
        try:
            with open(self.path(name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def replace(self, name: str, data: bytes) -> None:
        path = self.path(name)
        temporary = path + ".tmp"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
        sync_directory(os.path.dirname(path))

    def data_names(self) -> list[str]:
        names = []
        folders = [""]
        while folders:
            folder = folders.pop()
            if folder and os.path.lexists(self.path(f"{folder}/{OWN}")):
                continue
            with os.scandir(self.path(folder)) as entries:
                for entry in entries:
                    if entry.name.startswith(("_", ".")):
                        continue
                    if number_of(entry.name) is not None:
                        names.append(f"{folder}/{entry.name}" if folder else entry.name)
                    elif not folder and entry.is_dir(follow_symlinks=False):
                        folders.append(entry.name)
        return names

    def size(self, name: str) -> int | None:
        try:
            return os.stat(self.path(name)).st_size
        except FileNotFoundError:
            return None

    def remove(self, name: str) -> None:
        try:
            os.unlink(self.path(name))
        except FileNotFoundError:
            return

    def sweep(self) -> None:
        with os.scandir(self.path(STAGE)) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    self.remove(f"{STAGE}/{entry.name}")

    def stage(self, name: str) -> StageFile:
        return _LocalStage(self.path(name))

    def source(self, name: str) -> Any:
        import pyarrow as pa

        return pa.OSFile(self.path(name), "rb")

    @contextmanager
    def create(self, name: str, staged: str) -> Iterator[IO[bytes]]:
        os.makedirs(os.path.dirname(self.path(staged)), exist_ok=True)
        try:
            with open(self.path(staged), "wb") as stream:
                yield stream
            self.publish(staged, name)
        finally:
            self.remove(staged)

    def publish(self, staged: str, name: str) -> None:
        source, path = self.path(staged), self.path(name)
        if self.make_folder(name):
            sync_directory(self.root)
        fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)
        try:
            os.link(source, path)
        except FileExistsError:  # left by a commit that failed half way: its number was never given out
            os.unlink(path)
            os.link(source, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            os.replace(source, path)
        sync_directory(os.path.dirname(path))

    def make_folder(self, name: str) -> bool:
        """The folder of a data file; True if it is new, and the root not yet durable."""
        path = os.path.dirname(self.path(name))
        if os.path.isdir(path):
            return False
        os.makedirs(path, exist_ok=True)
        return True


class _LocalStage:
    """Opens the file for each write: a task that stages a thousand tables holds no thousand files."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.flags = os.O_CREAT | os.O_EXCL

    def write(self, data: bytes | memoryview) -> None:
        if self.flags:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | self.flags, 0o644)
        self.flags = 0
        try:
            write_all(fd, data)
        finally:
            os.close(fd)

    def close(self, *, durable: bool) -> None:
        if durable:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fdatasync(fd)
            finally:
                os.close(fd)


def sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
