"""Log files on any pyarrow filesystem: s3://, gs://, abfs://, hdfs:// …

These have no link(2) and pyarrow offers no conditional put, so `reveal` looks whether the name is taken
and then writes to the final name. Between the two another appender could do the same. What protects
the log there: (1) the capture that owns it holds the subscription's advisory lock and slot, and two
processes cannot read one slot at once; (2) a former owner that wakes up late knows only chunks of its
own epoch, and what a chunk (start, end] says is a function of the WAL alone: the same frames from the
same start, at worst cut at another end, which the next look at the chain refuses as broken, never
reads as a gap; (3) parts of a large transaction carry the epoch in their names, and part 0, which names
it, is written last. Where this is not enough, keep the log on a local disk (`ack: sink` then still lets
a lost log be filled again from the slot).

Durable: an object store's answer to the upload is the promise; a plain file system behind pyarrow is
not flushed (use a path, not a pyarrow filesystem, for local disks: `open_log` does).
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from typing import Any
from urllib.parse import urlsplit

import pyarrow.fs as pafs

from ..errors import UsageError
from ..redaction import redact
from .chunk import Source
from .spool import TEMPORARY, Spool, making_error, storage_error

_ATOMIC_PUT = ("s3", "gcs", "abfs")
_BLOCK = 4 << 20


def open_store(url: str) -> ObjectStore:
    try:
        filesystem, root = pafs.FileSystem.from_uri(url)
    except (ValueError, OSError, ImportError) as error:
        raise UsageError(
            f"log.path: {shown(url)} cannot be opened: {redact(str(error))}",
            hint="a directory, or a URL that pyarrow opens: s3://bucket/prefix, gs://…, abfs://…, hdfs://…",
        ) from error
    return ObjectStore(filesystem, root, shown(url))


def shown(url: str) -> str:
    """The URL without what may be secret: user, password and options."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


class ObjectSource:
    def __init__(self, filesystem: Any, path: str, label: str) -> None:
        self.label = label
        try:
            self._file = filesystem.open_input_file(path)
            self.size = self._file.size()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise storage_error(label, "opening", error) from error

    def read_at(self, offset: int, size: int) -> bytes:
        try:
            return bytes(self._file.read_at(size, offset))
        except OSError as error:
            raise storage_error(self.label, "reading", error) from error

    def read_into(self, offset: int, target: memoryview) -> int:
        try:
            self._file.seek(offset)
            return int(self._file.readinto(target))
        except OSError as error:
            raise storage_error(self.label, "reading", error) from error

    def close(self) -> None:
        self._file.close()


class ObjectStore:
    def __init__(self, filesystem: Any, root: str, url: str) -> None:
        self.path = url.rstrip("/")
        self._fs = filesystem
        self._root = root.rstrip("/")
        self._atomic = filesystem.type_name in _ATOMIC_PUT
        self.poll_seconds = 0.25 if self._atomic else 0.0
        """A look-up is a paid request there; planners ask every few milliseconds."""

    def _of(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _label(self, name: str) -> str:
        return f"{self.path}/{name}"

    def prepare(self) -> None:
        if self._atomic:
            return  # prefixes need no making; creating one could try to create the bucket
        try:
            self._fs.create_dir(self._root, recursive=True)
        except OSError as error:
            raise making_error(self.path, error) from error

    def spool(self) -> Spool:
        return Spool(tempfile.gettempdir(), named=False)

    def settle(self, spool: Spool) -> None:
        """Nothing: the upload is what makes it durable."""

    def place(self, spool: Spool, name: str) -> None:
        target = self._of(name) if self._atomic else self._of(f"{TEMPORARY}{name}.tmp")
        try:
            self._upload(spool, target)
            if not self._atomic:
                self._fs.move(target, self._of(name))
        except OSError as error:
            # Closing a broken upload may have stored the half of it: never leave that under a chunk's name.
            with contextlib.suppress(OSError):
                self._fs.delete_file(target)
            raise storage_error(self._label(name), "writing", error) from error
        spool.discard()

    def _upload(self, spool: Spool, target: str) -> None:
        size = os.fstat(spool.fd).st_size
        with self._fs.open_output_stream(target) as stream:
            for offset in range(0, size, _BLOCK):
                stream.write(os.pread(spool.fd, _BLOCK, offset))
        if self._fs.get_file_info(target).size != size:
            raise OSError(errno.EIO, "the stored object is shorter than what was sent")

    def reveal(self, spool: Spool, name: str) -> None:
        if self._info(name).type != pafs.FileType.NotFound:
            raise FileExistsError(self._label(name))
        self.place(spool, name)

    def _info(self, name: str) -> Any:
        try:
            return self._fs.get_file_info(self._of(name))
        except OSError as error:
            raise storage_error(self._label(name), "looking up", error) from error

    def sync(self) -> None:
        """Nothing: a name exists with its object."""

    def names(self) -> list[str]:
        try:
            found = self._fs.get_file_info(pafs.FileSelector(self._root, allow_not_found=True))
        except OSError as error:
            raise storage_error(self.path, "listing", error) from error
        return [info.base_name for info in found]

    def size(self, name: str) -> int:
        info = self._info(name)
        if info.type == pafs.FileType.NotFound:
            raise FileNotFoundError(self._label(name))
        return int(info.size)

    def source(self, name: str) -> Source:
        return ObjectSource(self._fs, self._of(name), self._label(name))

    def read(self, name: str) -> bytes:
        with self._fs.open_input_stream(self._of(name)) as stream:
            return bytes(stream.read())

    def delete(self, name: str) -> None:
        try:
            self._fs.delete_file(self._of(name))
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_error(self._label(name), "deleting", error) from error

    def stamp(self) -> object:
        return None

    def destroy(self) -> None:
        if self._atomic:
            return
        with contextlib.suppress(OSError):
            if not self._fs.get_file_info(pafs.FileSelector(self._root, allow_not_found=True)):
                self._fs.delete_dir(self._root)
