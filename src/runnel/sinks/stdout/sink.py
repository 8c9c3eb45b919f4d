"""The stdout sink: tasks stage JSON lines beside the log, the driver copies them to descriptor 1.

A pipe cannot hold a position: `runnel.progress` does, written after the lines are out. So after a
crash some lines may come again; (lsn, seq) names each change, to drop repeats by. A reader that is
gone ends the run: nothing is lost, the next one goes on after what was written.

A process killed while it writes may leave half a line. While lines go out a mark beside the stage says
to where; whoever finds it, and stands at the same output, cuts the half line off a file and ends it in
a pipe, so that no change begins behind it.
"""

from __future__ import annotations

import fcntl
import os
import select
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ...errors import Refused
from ...failpoints import failpoint
from ...postgres.lsn import Lsn
from ...progress.position import Position
from ..api import Attempt, Batch, Capabilities, Name, Plan, Receipt, Sink, Writer
from ..files.place import LocalPlace
from ..files.record import already_there
from ..files.stage import Piece, TextStage, discard, pieces_of, stage_base
from ..files.text import JsonLines, TextWriter
from ..registry import SinkContext
from ..transfer import copy_range, wait_writable
from ..trouble import told
from .settings import StdoutSettings

_WHERE = "standard output"
_MARK = "writing"
_STEP = 1 << 16
_NEVER = 1 << 62
"""Staged lines are copied: they need not roll, nor be durable."""


def sink(settings: StdoutSettings, context: SinkContext) -> Sink:
    return Stdout(settings, context.stage)


def writer(task: Mapping[str, Any], attempt: Attempt) -> Writer:
    base = stage_base(task["stage"], attempt)
    stage = TextStage(LocalPlace(task["root"]), base, codec="none", limit=_NEVER)
    return TextWriter(task["root"], JsonLines(by_table=False, longest=task["longest"]), stage, _NEVER)


class Stdout:
    def __init__(self, settings: StdoutSettings, stage: str, fd: int = 1) -> None:
        self.capabilities = Capabilities(
            plan=Plan.STAGED,
            holds_position=False,
            guarantee="at least once: (lsn, seq) names each change, to drop repeats by",
            max_record_bytes=settings.max_record_bytes,
            default_json=True,
        )
        self._place = LocalPlace(stage)
        self._fd = fd
        self._lsn = Lsn(0)
        self._epoch = 0

    def open(self, position: Position) -> Position:
        self._place.make()
        with told(self._place.root):
            self._place.sweep()
        self._lsn, self._epoch = position.lsn, position.epoch
        return position

    def task(self) -> Mapping[str, Any]:
        return {
            "root": self._place.root,
            "stage": f"e{self._epoch:08d}",
            "longest": self.capabilities.max_record_bytes,
        }

    def commit(self, batch: Batch, receipts: Sequence[Receipt]) -> Lsn:
        pieces = pieces_of(receipts)
        if not already_there(self._lsn, batch, _WHERE):
            self._print(pieces)
            self._lsn = batch.end
            failpoint("sink.committed")
        discard(self._place, pieces)
        return self._lsn

    def tick(self) -> Lsn:
        poll = select.poll()
        poll.register(self._fd, 0)
        if any(event & select.POLLERR for _, event in poll.poll(0)):
            raise _reader_gone()
        return self._lsn

    def flush(self) -> Lsn:
        return self._lsn

    def reposition(self, lsn: Lsn) -> None:
        self._lsn = lsn

    def redelivered(self) -> frozenset[Name]:
        return frozenset()

    def redeliver(self, names: Sequence[Name], receipts: Sequence[Receipt]) -> None:
        pieces = pieces_of(receipts)
        self._print(pieces)
        failpoint("sink.committed")
        discard(self._place, pieces)

    def close(self) -> None:
        return

    def _print(self, pieces: Sequence[Piece]) -> None:
        if not pieces:
            return
        torn = self._torn()
        with self._whole_or_nothing():
            if torn:
                self._end_line()
            for piece in pieces:
                self._copy(piece)
            failpoint("sink.written")

    def _copy(self, piece: Piece) -> None:
        source = os.open(self._place.path(piece.file), os.O_RDONLY | os.O_CLOEXEC)
        try:
            copy_range(source, piece.offset, piece.bytes, self._fd)
        finally:
            os.close(source)

    @contextmanager
    def _whole_or_nothing(self) -> Iterator[None]:
        """Where standard output is a file, a failed commit leaves no half line in it."""
        before = self._length()
        with told(self._place.root):
            self._mark(before)
        try:
            with told(_WHERE):
                yield
        except BaseException as error:
            if before is not None:
                self._cut(before)
                self._place.remove(_MARK)
            if isinstance(error.__cause__, BrokenPipeError):
                raise _reader_gone() from error
            raise
        self._place.remove(_MARK)

    def _length(self) -> int | None:
        """Where the next line of a file begins; None if standard output is no file."""
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            return None
        at_end = fcntl.fcntl(self._fd, fcntl.F_GETFL) & os.O_APPEND
        return os.lseek(self._fd, 0, os.SEEK_END if at_end else os.SEEK_CUR)

    def _cut(self, length: int) -> None:
        os.ftruncate(self._fd, length)
        os.lseek(self._fd, length, os.SEEK_SET)

    def _mark(self, before: int | None) -> None:
        """Not flushed: it is for a process that dies, not for a machine, whose pipes die with it."""
        output = os.fstat(self._fd)
        with open(self._place.path(_MARK), "w") as file:
            file.write(f"{output.st_dev} {output.st_ino} {before or 0}\n")

    def _torn(self) -> bool:
        """Whether what is written next may come behind half a line; in a file it is cut off here."""
        with told(self._place.root):
            found = (self._place.read(_MARK) or b"").split()
        output = os.fstat(self._fd)
        if len(found) != 3 or (int(found[0]), int(found[1])) != (output.st_dev, output.st_ino):
            return False
        length = self._length()
        if length is None:
            return True
        with told(_WHERE):
            self._cut(_last_line_end(self._fd, int(found[2]), length))
        return False

    def _end_line(self) -> None:
        while True:
            try:
                os.write(self._fd, b"\n")
            except BlockingIOError:
                wait_writable(self._fd)
            else:
                return


def _last_line_end(fd: int, start: int, end: int) -> int:
    """Behind the last newline between two places of a file that is perhaps open for writing only; else
    `start`."""
    try:
        file = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return min(start, end)  # whole lines go too: they come again
    try:
        while end > start:
            step = max(start, end - _STEP)
            found = os.pread(file, end - step, step).rfind(b"\n")
            if found >= 0:
                return step + found + 1
            end = step
        return end
    finally:
        os.close(file)


def _reader_gone() -> Refused:
    return Refused(
        "the reader of standard output is gone",
        hint="nothing is lost: the next run goes on after the last change that was written",
    )
