"""Copying bytes between file descriptors without taking them through Python.

The kernel's ways are tried from the cheapest: sharing or copying inside the file system, then
`sendfile`, then plain reading and writing. Which ones work depends on both ends.
"""

from __future__ import annotations

import errno
import os
import select

_CANNOT = {errno.EINVAL, errno.ENOSYS, errno.EXDEV, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM}
_STEP = 1 << 30


def copy_range(source: int, start: int, count: int, target: int) -> None:
    """Copy `count` bytes of the file `source` from `start` to where `target` stands (its own offset)."""
    for way in (_inside, _send, _plain):
        try:
            while count:
                try:
                    done = way(source, start, min(count, _STEP), target)
                except BlockingIOError:  # somebody else made the pipe non-blocking
                    wait_writable(target)
                    continue
                if not done:
                    raise OSError(errno.EIO, f"a staged piece ends {count} bytes too early")
                start, count = start + done, count - done
        except OSError as error:
            if way is _plain or error.errno not in _CANNOT:
                raise
        else:
            return


def _inside(source: int, start: int, count: int, target: int) -> int:
    if not hasattr(os, "copy_file_range"):
        raise OSError(errno.ENOSYS, "no copy_file_range here")
    return os.copy_file_range(source, target, count, offset_src=start)


def _send(source: int, start: int, count: int, target: int) -> int:
    return os.sendfile(target, source, start, count)


def _plain(source: int, start: int, count: int, target: int) -> int:
    data = memoryview(os.pread(source, min(count, 1 << 20), start))
    return os.write(target, data)


def wait_writable(target: int) -> None:
    poll = select.poll()
    poll.register(target, select.POLLOUT)
    poll.poll()


def write_all(target: int, data: bytes | memoryview) -> None:
    view = memoryview(data).cast("B")
    done = 0
    while done < len(view):
        done += os.write(target, view[done:])
