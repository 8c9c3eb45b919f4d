"""An output on an object store, through pyarrow's file systems.

Objects appear whole when their stream is closed, and replacing one is atomic: that is all the sink
needs. There is no lock here: two owners are told apart by the epoch in the record, and by the lock
that the owner of a pipeline holds in the state database.
"""

from __future__ import annotations

import errno
import shutil
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

from pyarrow import fs

from ...errors import UsageError
from ...redaction import redact
from .names import OWN, STAGE, number_of
from .place import StageFile

_STEP = 4 << 20


class RemotePlace:
    def __init__(self, url: str, filesystem: fs.FileSystem | None = None, base: str = "") -> None:
        self.root = url.partition("?")[0]
        if filesystem is None:
            try:
                filesystem, base = fs.FileSystem.from_uri(url)
            except (OSError, ValueError, NotImplementedError) as error:
                raise UsageError(
                    f"{self.root} cannot be opened: {redact(str(error))}",
                    hint="s3://, gs://, abfs:// and hdfs:// can be",
                ) from error
        self._fs = filesystem
        self._base = base.rstrip("/")

    def _at(self, name: str) -> str:
        return f"{self._base}/{name}"

    def make(self) -> None:
        return  # an object store has no directories

    def lock(self) -> AbstractContextManager[None]:
        return nullcontext()

    def read(self, name: str) -> bytes | None:
        try:
            with self._fs.open_input_stream(self._at(name), compression=None) as stream:
                data: bytes = stream.read()
                return data
        except FileNotFoundError:
            return None

    def replace(self, name: str, data: bytes) -> None:
        """By way of another object, which becomes this one when it is known to be whole: closing a broken
        upload stores the half of it, and there is no other way to end one."""
        fresh = f"{STAGE}/{uuid.uuid4().hex}"
        try:
            self._put(fresh, data)
            try:
                self._fs.copy_file(self._at(fresh), self._at(name))
            except NotImplementedError:  # hdfs cannot copy: what was sent once is sent again
                self._put(name, data)
        finally:
            with suppress(OSError):  # the next owner sweeps it
                self.remove(fresh)

    def _put(self, name: str, data: bytes) -> None:
        with self._fs.open_output_stream(self._at(name), compression=None) as stream:
            stream.write(data)
        if self.read(name) != data:
            raise _torn()

    def data_names(self) -> list[str]:
        names = self._names("")
        others = {name.partition(f"/{OWN}/")[0] for name in names if f"/{OWN}/" in name}
        return [
            name
            for name in names
            if number_of(name) is not None
            and not name.startswith(("_", "."))
            and name.count("/") <= 1
            and name.rpartition("/")[0] not in others
        ]

    def _names(self, under: str) -> list[str]:
        base = self._at(under).rstrip("/")
        infos = self._fs.get_file_info(fs.FileSelector(base, allow_not_found=True, recursive=True))
        skip = len(self._base) + 1
        return [info.path[skip:] for info in infos if info.type == fs.FileType.File]

    def size(self, name: str) -> int | None:
        info = self._fs.get_file_info(self._at(name))
        return None if info.type == fs.FileType.NotFound else int(info.size)

    def remove(self, name: str) -> None:
        try:
            self._fs.delete_file(self._at(name))
        except FileNotFoundError:
            return

    def sweep(self) -> None:
        for name in self._names(STAGE):
            self.remove(name)

    def stage(self, name: str) -> StageFile:
        return _RemoteStage(self._fs, self._at(name))

    def source(self, name: str) -> Any:
        return self._fs.open_input_file(self._at(name))

    @contextmanager
    def create(self, name: str, staged: str) -> Iterator[Any]:
        try:
            with self._fs.open_output_stream(self._at(name), compression=None) as stream:
                yield stream
                sent = stream.tell()
            if self.size(name) != sent:
                raise _torn()
        except BaseException:
            with suppress(OSError):  # closing a broken upload stored the half of it
                self.remove(name)
            raise

    def publish(self, staged: str, name: str) -> None:
        try:
            self._fs.copy_file(self._at(staged), self._at(name))
        except NotImplementedError:  # hdfs cannot copy: it goes through here
            with self.source(staged) as source, self.create(name, staged) as target:
                shutil.copyfileobj(source, target, _STEP)


def _torn() -> OSError:
    return OSError(errno.EIO, "the stored object is not what was sent")


class _RemoteStage:
    def __init__(self, filesystem: fs.FileSystem, path: str) -> None:
        self._fs = filesystem
        self._path = path
        self._stream: Any = None

    def write(self, data: bytes | memoryview) -> None:
        if self._stream is None:
            self._stream = self._fs.open_output_stream(self._path, compression=None)
        self._stream.write(data)

    def close(self, *, durable: bool) -> None:
        if self._stream is not None:
            self._stream.close()
