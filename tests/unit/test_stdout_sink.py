"""Standard output: whatever it is (a pipe, a file, nobody), whole lines in order."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from contract.sinks import LINEAGE, ORIGIN, batch_of
from runnel.errors import Refused, Transient
from runnel.progress.position import Position
from runnel.sinks.api import Attempt, Batch, Receipt
from runnel.sinks.stdout.settings import StdoutSettings
from runnel.sinks.stdout.sink import Stdout, writer
from windows import Transaction, insert, window


def batch(sink: Stdout, count: int, width: int = 1) -> tuple[Batch, Sequence[Receipt]]:
    transactions = [Transaction(0x1000 + 0x100 * n, (insert(n, "x" * width),)) for n in range(count)]
    found = batch_of(ORIGIN, transactions)
    task = writer(sink.task(), Attempt(found.start, found.end, 0, "a"))
    for transaction in transactions:
        task.write(window(transaction))
    return found, [Receipt(0, count, task.finish())]


def opened(path: Path, fd: int) -> Stdout:
    sink = Stdout(StdoutSettings(), str(path / "stage"), fd)
    sink.open(Position(LINEAGE, 1, ORIGIN))
    return sink


@pytest.mark.parametrize("blocking", [True, False])
def test_a_slow_reader_of_a_pipe_gets_every_line(tmp_path: Path, blocking: bool) -> None:
    reading, writing = os.pipe()
    if not blocking:
        os.set_blocking(writing, False)
    got: list[bytes] = []

    def read() -> None:
        while data := os.read(reading, 5000):
            got.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    sink = opened(tmp_path, writing)
    some, receipts = batch(sink, 3000, 300)
    assert sink.commit(some, receipts) == some.end
    os.close(writing)
    reader.join()
    os.close(reading)
    lines = b"".join(got).splitlines()
    assert [json.loads(line)["key"]["id"] for line in lines] == list(range(3000))
    assert not [p for p in (tmp_path / "stage").rglob("*") if p.is_file() and p.name != "lock"]


@pytest.mark.parametrize("flags", [0, os.O_APPEND])
def test_a_file_keeps_what_it_had_and_no_half_line(tmp_path: Path, flags: int) -> None:
    path = tmp_path / "out"
    path.write_text("before\n")
    fd = os.open(path, os.O_WRONLY | flags)
    if not flags:
        os.lseek(fd, 0, os.SEEK_END)
    sink = opened(tmp_path, fd)
    some, receipts = batch(sink, 3)
    sink.commit(some, receipts)
    os.close(fd)
    assert len(path.read_text().splitlines()) == 4


def test_a_reader_that_is_gone_ends_the_run_and_says_so(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    sink = opened(tmp_path, writing)
    assert sink.tick() == ORIGIN
    os.close(reading)
    some, receipts = batch(sink, 3)
    with pytest.raises(Refused, match="reader of standard output is gone") as caught:
        sink.commit(some, receipts)
    assert "nothing is lost" in caught.value.hint
    with pytest.raises(Refused, match="gone"):
        sink.tick()
    os.close(writing)


def test_a_full_disk_behind_it_may_heal(tmp_path: Path) -> None:
    fd = os.open("/dev/full", os.O_WRONLY)
    sink = opened(tmp_path, fd)
    some, receipts = batch(sink, 3)
    with pytest.raises(Transient, match="standard output"):
        sink.commit(some, receipts)
    os.close(fd)


def test_a_failed_commit_to_a_file_leaves_no_half_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from runnel.sinks.stdout import sink as module

    fd = os.open(tmp_path / "out", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"before\n")
    sink = opened(tmp_path, fd)
    some, receipts = batch(sink, 3)

    def half(source: int, start: int, count: int, target: int) -> None:
        os.write(target, os.pread(source, 5, start))
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, "copy_range", half)
        with pytest.raises(Transient):
            sink.commit(some, receipts)
    assert (tmp_path / "out").read_text() == "before\n"
    sink.commit(some, receipts)
    assert len((tmp_path / "out").read_text().splitlines()) == 4
    os.close(fd)


class Killed(BaseException):
    """The process ends here: nothing of it runs any more."""


def killed_in_a_line(sink: Stdout, some: Batch, receipts: Sequence[Receipt], written: int) -> None:
    from runnel.sinks.stdout import sink as module

    def half(source: int, start: int, count: int, target: int) -> None:
        os.write(target, os.pread(source, written, start))
        raise Killed

    def never(*_: int) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "copy_range", half)
        patch.setattr(os, "ftruncate", never)
        with pytest.raises(Killed):
            sink.commit(some, receipts)


def first_line(path: Path, receipts: Sequence[Receipt]) -> int:
    piece = receipts[0].payload["pieces"][0]
    staged: Path = path / "stage" / piece["file"]
    return staged.read_bytes().index(b"\n") + 1


@pytest.mark.parametrize("lines", [0, 1])
@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_WRONLY | os.O_APPEND])
def test_who_comes_after_a_kill_cuts_the_half_line_off_a_file(
    tmp_path: Path, flags: int, lines: int
) -> None:
    path = tmp_path / "out"
    path.write_text("what stood there, without an end")
    fd = os.open(path, flags)
    os.lseek(fd, 0, os.SEEK_END)
    sink = opened(tmp_path, fd)
    some, receipts = batch(sink, 3)
    killed_in_a_line(sink, some, receipts, lines * first_line(tmp_path, receipts) + 7)
    sink = opened(tmp_path, fd)
    some, receipts = batch(sink, 3)
    sink.commit(some, receipts)
    os.close(fd)
    got = path.read_text().removeprefix("what stood there, without an end").splitlines()
    assert [json.loads(line)["key"]["id"] for line in got] == [*[0][:lines], 0, 1, 2]


def test_who_comes_after_a_kill_ends_the_half_line_in_a_pipe(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    sink = opened(tmp_path, writing)
    some, receipts = batch(sink, 3)
    killed_in_a_line(sink, some, receipts, 7)
    sink = opened(tmp_path, writing)
    some, receipts = batch(sink, 3)
    sink.commit(some, receipts)
    half, *whole = os.read(reading, 65536).splitlines()
    assert half == b'{"op":"'
    assert [json.loads(line)["key"]["id"] for line in whole] == [0, 1, 2]
    os.close(reading)
    os.close(writing)


def test_another_output_than_the_one_with_the_half_line_begins_with_a_change(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    sink = opened(tmp_path, writing)
    some, receipts = batch(sink, 3)
    killed_in_a_line(sink, some, receipts, 7)
    with (tmp_path / "out").open("w+b") as other:
        sink = opened(tmp_path, other.fileno())
        some, receipts = batch(sink, 3)
        sink.commit(some, receipts)
        other.seek(0)
        assert [json.loads(line)["key"]["id"] for line in other] == [0, 1, 2]
    os.close(reading)
    os.close(writing)


def test_a_terminal_gets_lines_too(tmp_path: Path) -> None:
    import pty
    import termios

    leader, follower = pty.openpty()
    termios.tcgetattr(follower)
    sink = opened(tmp_path, follower)
    some, receipts = batch(sink, 2)
    sink.commit(some, receipts)
    fcntl.fcntl(leader, fcntl.F_SETFL, os.O_NONBLOCK)
    assert len(os.read(leader, 65536).splitlines()) == 2
    os.close(leader)
    os.close(follower)
