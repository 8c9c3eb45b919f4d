"""What every change log must do, whichever store it lives on.

A new store is added to `STORES`; nothing else here changes.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.fs as pafs
import pytest

from logmaking import LINEAGE, USERS, append, contents, filled, frame, header, messages
from runnel.errors import Kind, Refused, RunnelError
from runnel.log import known, open_log
from runnel.log.api import ChangeLog, Filled, Lineage, LogSettings, OpenTransaction, Usage
from runnel.log.chunk import Footer, Source, read_footer
from runnel.log.directory import DirectoryLog
from runnel.log.known import chunk_name
from runnel.log.objects import ObjectStore
from runnel.postgres.lsn import Lsn

Opener = Callable[[], ChangeLog]
PIECE = 4096


def local(path: Path) -> ChangeLog:
    return open_log(str(path), LogSettings(str(path), piece_bytes=PIECE))


def on_pyarrow(path: Path) -> ChangeLog:
    store = ObjectStore(pafs.LocalFileSystem(), str(path), path.as_uri())
    return DirectoryLog(store, LogSettings(str(path), piece_bytes=PIECE))


STORES = {"local": local, "pyarrow": on_pyarrow}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "a log"


@pytest.fixture(params=STORES)
def opened(request: pytest.FixtureRequest, place: Path) -> Opener:
    """Opens the same log again and again, as processes do."""
    return lambda: STORES[request.param](place)


def chunk_files(place: Path) -> list[str]:
    return sorted(p.name for p in place.iterdir() if p.name.endswith(".chunk"))


def test_what_is_appended_is_read_back_in_order(opened: Opener) -> None:
    log = opened()
    append(log, 100, 200, b"Ba", b"Ib", b"Cc")
    append(log, 200, 300, b"Bd", b"", b"Ce" * 9000)
    assert contents(log, 100) == [b"Ba", b"Ib", b"Cc", b"Bd", b"", b"Ce" * 9000]
    assert contents(opened(), 100) == contents(log, 100)


def test_a_header_comes_back_as_it_was(opened: Opener) -> None:
    log = opened()
    other = replace(USERS, oid=9, name='a "table". with ünïcode')
    head = header(
        1,
        1 << 40,
        first_seq=5,
        transaction=OpenTransaction(700, Lsn(50), Lsn(1 << 40), 1_700_000_000_000_000),
        streamed=True,
        transactions=1,
        first_time=1_700_000_000_000_000,
        last_time=-5,
        schema_change=True,
        relations=(USERS, other),
        changed=((0, other), (1, replace(USERS, key=()))),
    )
    log.append([filled(log, head, [frame(b"x"), frame(b"y")])])
    (ref,) = opened().chunks(Lsn(1))
    got = opened().open(ref.name)
    assert replace(got.header, pieces=()) == replace(head, changes=2)
    assert [(p.frames, p.bytes) for p in got.header.pieces] == [(2, 52)]
    assert (ref.bytes, ref.changes, ref.last_time, ref.schema_change) == (52, 2, -5, True)
    got.close()


def test_a_chunk_is_read_in_pieces_of_whole_frames(opened: Opener) -> None:
    log = opened()
    writer = log.writer()
    sent: list[bytes] = []
    for size in (10, 3000, 2000, 9000, 1, 5000, 4000):
        burst = [frame(bytes([65 + size % 26]) * size), frame(b"z")]
        writer.write(memoryview(b"".join(burst)), np.array([len(f) for f in burst], dtype=np.int64))
        sent += burst
    assert (writer.frames, writer.size) == (14, sum(map(len, sent)))
    log.append([Filled(writer, header(1, 2))])
    reader = log.open(next(iter(log.chunks(Lsn(1)))).name)
    assert all(p.bytes <= PIECE or p.frames == 1 for p in reader.header.pieces)
    assert len(reader.header.pieces) > 4
    assert messages(reader) == [f[25:] for f in sent]


def test_a_piece_has_room_before_and_behind(opened: Opener) -> None:
    log = opened()
    append(log, 1, 2, b"abc")
    reader = log.open(next(iter(log.chunks(Lsn(1)))).name)
    piece = next(iter(reader.pieces()))
    assert piece.offsets.tolist() == [1 << 16, (1 << 16) + 28]
    assert len(piece.buffer) - int(piece.offsets[-1]) >= 256 * 1024
    reader.close()


def test_nothing_is_seen_of_a_chunk_before_it_is_appended(opened: Opener, place: Path) -> None:
    log = opened()
    append(log, 1, 2, b"a")
    waiting = filled(log, header(2, 3), [frame(b"b")])
    assert contents(opened(), 1) == [b"a"]
    waiting.writer.discard()
    assert opened().sweep() == []
    assert sorted(p.name for p in place.iterdir()) == [chunk_name(1, 0, 7), "_log.json"]


def test_of_two_appenders_at_one_start_one_wins(opened: Opener) -> None:
    append(opened(), 1, 2, b"a")
    one, two = opened(), opened()
    assert one.usage().end == two.usage().end == 2
    second = filled(two, header(2, 5, epoch=8), [frame(b"lost")])
    append(one, 2, 3, b"won")
    with pytest.raises(Refused, match="already holds a chunk at 0/2"):
        two.append([second])
    with pytest.raises(Refused, match="already holds a chunk at 0/2"):
        two.append([filled(two, header(2, 5, epoch=8), [frame(b"lost")])])
    assert contents(opened(), 1) == [b"a", b"won"]


def test_a_late_appender_cannot_write_into_the_middle_or_leave_a_gap(opened: Opener) -> None:
    log = opened()
    append(log, 10, 20, b"a")
    for start in (5, 10, 15):
        with pytest.raises(Refused, match="already holds"):
            append(opened(), start, 30, b"x")
    with pytest.raises(Refused, match="leave a gap"):
        append(opened(), 21, 30, b"x")
    with pytest.raises(ValueError, match="covers"):
        append(opened(), 20, 20, b"x")
    assert contents(opened(), 10) == [b"a"]


def parts(log: ChangeLog, start: int, end: int, epoch: int, *bodies: bytes) -> list[Filled]:
    return [
        filled(log, header(start, end, part=i, parts=len(bodies), epoch=epoch), [frame(body)])
        for i, body in enumerate(bodies)
    ]


def test_the_parts_of_a_transaction_appear_together(opened: Opener, place: Path) -> None:
    log = opened()
    append(log, 1, 2, b"a")
    large = parts(log, 2, 9, 7, b"one", b"two", b"three")
    assert contents(opened(), 1) == [b"a"]
    log.append(large)
    refs = list(opened().chunks(Lsn(2)))
    assert [(r.part, r.parts, r.start, r.end) for r in refs] == [(0, 3, 2, 9), (1, 3, 2, 9), (2, 3, 2, 9)]
    assert contents(opened(), 2) == [b"one", b"two", b"three"]
    append(log, 9, 12, b"z")
    assert contents(opened(), 1)[-1] == b"z"
    assert opened().usage().chunks == 3
    assert opened().usage().bytes == sum((place / n).stat().st_size for n in chunk_files(place))


def test_parts_left_by_a_dead_appender_are_not_seen_and_are_swept(opened: Opener, place: Path) -> None:
    log = opened()
    append(log, 1, 2, b"a")
    log.append(parts(log, 2, 9, 7, b"dead", b"dead too"))
    (place / chunk_name(2, 0, 7)).unlink()  # as if it had died before the last step
    (place / ".chunk-old.tmp").write_bytes(b"half")
    assert contents(opened(), 1) == [b"a"]
    heir = opened()
    heir.append(parts(heir, 2, 9, 8, b"new", b"new too"))
    assert contents(opened(), 1) == [b"a", b"new", b"new too"]
    assert chunk_name(2, 1, 7) in chunk_files(place)
    assert opened().sweep() == []
    assert chunk_files(place) == sorted([chunk_name(1, 0, 0), chunk_name(2, 0, 8), chunk_name(2, 1, 8)])
    assert not (place / ".chunk-old.tmp").exists()
    assert contents(opened(), 1) == [b"a", b"new", b"new too"]


def test_a_missing_part_is_an_error_that_names_it(opened: Opener, place: Path) -> None:
    log = opened()
    log.append(parts(log, 2, 9, 7, b"one", b"two"))
    (place / chunk_name(2, 1, 7)).unlink()
    with pytest.raises(Refused, match=chunk_name(2, 1, 7)):
        list(opened().chunks(Lsn(2)))


def test_a_chunk_that_is_trimmed_while_it_is_looked_at_is_gone_and_not_broken(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = opened()
    append(owner, 1, 2, b"a")
    owner.append(parts(owner, 2, 9, 7, b"one", b"two"))
    append(owner, 9, 12, b"b")
    reader = opened()

    def slowly(source: Source) -> Footer:
        found = read_footer(source)
        if found.parts > 1:
            owner.trim(Lsn(9))
        return found

    monkeypatch.setattr(known, "read_footer", slowly)
    assert list(reader.chunks(Lsn(2))) == []
    monkeypatch.undo()
    with pytest.raises(Refused, match="no longer in it"):
        list(reader.chunks(Lsn(2)))
    assert contents(reader, 9) == [b"b"]


def test_a_position_inside_a_chunk_begins_with_that_chunk(opened: Opener) -> None:
    log = opened()
    append(log, 10, 20, b"a")
    append(log, 20, 30, b"b")
    for after, expected in ((10, b"ab"), (19, b"ab"), (20, b"b"), (29, b"b"), (30, b""), (99, b"")):
        assert b"".join(contents(log, after)) == expected, after
        assert b"".join(contents(opened(), after)) == expected, after


def test_a_position_past_the_end_waits_until_the_log_covers_it(opened: Opener) -> None:
    log, reader = opened(), opened()
    assert list(reader.chunks(Lsn(25))) == []
    append(log, 10, 20, b"a")
    assert list(reader.chunks(Lsn(25))) == []
    append(log, 20, 24, b"b")
    assert list(reader.chunks(Lsn(25))) == []
    append(log, 24, 30, b"c")
    assert contents(reader, 25) == [b"c"]


def test_a_position_before_the_first_chunk_is_refused(opened: Opener) -> None:
    append(opened(), 10, 20, b"a")
    with pytest.raises(Refused, match="begins at 0/A: changes from 0/9 on are no longer in it"):
        list(opened().chunks(Lsn(9)))


def test_a_reader_that_follows_sees_each_new_chunk(opened: Opener) -> None:
    log, reader = opened(), opened()
    seen: list[bytes] = []
    position = 10
    for number in range(20):
        append(log, 10 + number, 11 + number, b"%d" % number)
        for ref in reader.chunks(Lsn(position)):
            seen += messages(reader.open(ref.name))
            position = ref.end
        assert list(reader.chunks(Lsn(position))) == []
    assert seen == [b"%d" % n for n in range(20)]


def test_a_chunk_without_frames_moves_the_end(opened: Opener) -> None:
    log = opened()
    append(log, 1, 2, b"a")
    log.advance(header(2, 50, relations=()))
    append(log, 50, 60, b"b")
    assert [(r.start, r.end, r.bytes) for r in opened().chunks(Lsn(2))] == [(2, 50, 0), (50, 60, 26)]
    assert contents(opened(), 1) == [b"a", b"b"]


def test_a_hole_in_the_chain_is_refused_and_never_stepped_over(opened: Opener, place: Path) -> None:
    log = opened()
    for start in (10, 20, 30, 40):
        append(log, start, start + 10, b"%d" % start)
    (place / chunk_name(20, 0, 0)).unlink()
    reader = opened()
    with pytest.raises(Refused, match=f"broken: {chunk_name(20, 0, 0)} is missing"):
        list(reader.chunks(Lsn(10)))
    with pytest.raises(Refused, match="is missing"):
        list(reader.chunks(Lsn(25)))
    assert contents(reader, 30) == [b"30", b"40"]


def test_trim_frees_what_lies_before_and_keeps_the_last_chunk(opened: Opener, place: Path) -> None:
    log = opened()
    for start in (10, 20, 30):
        append(log, start, start + 10, b"%d" % start)
    log.append(parts(log, 40, 50, 7, b"large", b"transaction"))
    before = log.usage()
    assert (before.chunks, before.first, before.end) == (4, 10, 50)
    assert log.trim(Lsn(29)) > 0
    assert log.usage().first == opened().usage().first == 20
    owner = opened()
    assert owner.trim(Lsn(1 << 50)) > 0
    assert chunk_files(place) == [chunk_name(40, 0, 7), chunk_name(40, 1, 7)]
    assert owner.trim(Lsn(1 << 50)) == 0
    assert owner.usage() == opened().usage()
    assert owner.usage().end == 50
    append(owner, 50, 60, b"z")
    owner.trim(Lsn(50))
    assert chunk_files(place) == [chunk_name(50, 0, 7)]
    assert owner.usage() == Usage((place / chunk_name(50, 0, 7)).stat().st_size, 1, Lsn(50), Lsn(60))


def test_trim_keeps_what_is_young_enough_to_be_replayed(opened: Opener) -> None:
    log = opened()
    for start, last in ((10, 1000), (20, 0), (30, 3000), (40, 2000), (50, 9000)):
        append(log, start, start + 10, b"x", last_time=last)
    assert opened().trim(Lsn(60), keep_since=500) == 0
    opened().trim(Lsn(60), keep_since=2500)
    assert opened().usage().first == 30


def test_usage_of_a_log_that_is_not_there_is_nothing(opened: Opener, place: Path) -> None:
    log = opened()
    assert log.usage() == Usage(0, 0, None, None)
    assert log.lineage() is None
    assert list(log.chunks(Lsn(5))) == []
    assert log.sweep() == []
    assert log.trim(Lsn(5)) == 0
    assert not place.exists()


def test_the_lineage_is_that_of_the_last_chunk(opened: Opener) -> None:
    log = opened()
    append(log, 1, 2, b"a")
    promoted = replace(LINEAGE, timeline=2)
    append(log, 2, 3, b"b", lineage=promoted)
    assert opened().lineage() == promoted


def test_the_log_of_another_subscription_is_refused(opened: Opener) -> None:
    other = Lineage("74", 1, "shop_ffffffff")
    append(opened(), 1, 2, b"a")
    with pytest.raises(Refused, match="belongs to the slot shop_1f2e3d4c, not to shop_ffffffff"):
        append(opened(), 2, 3, b"b", lineage=other)
    opened().destroy()
    append(opened(), 2, 3, b"b", lineage=other)
    assert opened().lineage() == other


def test_a_file_that_is_not_ours_is_named_and_left_alone(opened: Opener, place: Path) -> None:
    append(opened(), 1, 2, b"a")
    (place / "notes.txt").write_text("mine")
    log = opened()
    assert log.sweep() == ["notes.txt"]
    log.destroy()
    assert sorted(p.name for p in place.iterdir()) == ["notes.txt"]


def test_the_scratch_of_other_processes_is_no_stranger_and_goes_with_the_log(place: Path) -> None:
    append(local(place), 1, 2, b"a")
    (place / "_stage" / "copy").mkdir(parents=True)
    (place / "_spool").mkdir()
    assert local(place).sweep() == []
    local(place).destroy()
    assert not place.exists()


def test_destroy_leaves_nothing_behind_and_may_be_repeated(opened: Opener, place: Path) -> None:
    log = opened()
    append(log, 1, 2, b"a")
    log.append(parts(log, 2, 9, 7, b"one", b"two"))
    opened().destroy()
    assert not place.exists()
    opened().destroy()


@pytest.mark.parametrize("size", [0, 5, 8, 40, -1, -9, -60])
def test_a_chunk_cut_anywhere_is_refused_by_name(opened: Opener, place: Path, size: int) -> None:
    append(opened(), 1, 2, b"some frame", b"another")
    path = place / chunk_name(1, 0, 0)
    whole = path.read_bytes()
    path.write_bytes(whole[:size])
    with pytest.raises(Refused, match=path.name) as caught:
        contents(opened(), 1)
    assert "restore this file" in caught.value.hint


def test_a_chunk_with_any_byte_changed_is_refused_by_name(opened: Opener, place: Path) -> None:
    append(opened(), 1, 2, b"some frame", b"another")
    path = place / chunk_name(1, 0, 0)
    whole = path.read_bytes()
    for at in range(8, len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(Refused, match=path.name):
            contents(opened(), 1)


def test_a_file_of_something_else_is_refused_as_such(opened: Opener, place: Path) -> None:
    append(opened(), 1, 2, b"a")
    (place / chunk_name(1, 0, 0)).write_bytes(b"PAR1" * 100)
    with pytest.raises(Refused, match="is not a chunk written by Runnel"):
        list(opened().chunks(Lsn(1)))


def test_a_chunk_of_another_place_or_log_is_refused(opened: Opener, place: Path, tmp_path: Path) -> None:
    append(opened(), 1, 2, b"a")
    shutil.copy(place / chunk_name(1, 0, 0), place / chunk_name(2, 0, 0))
    with pytest.raises(Refused, match="holds part 0 of 0/1"):
        list(opened().chunks(Lsn(1)))
    with pytest.raises(Refused, match="holds part 0 of the chunk at 0/1"):
        opened().open(chunk_name(2, 0, 0))
    foreign = open_log(str(tmp_path / "other"))
    append(foreign, 2, 3, b"b", lineage=Lineage("1", 1, "other_00000000"))
    shutil.copy(tmp_path / "other" / chunk_name(2, 0, 0), place / chunk_name(2, 0, 0))
    with pytest.raises(Refused, match="belongs to another subscription"):
        list(opened().chunks(Lsn(1)))


def test_a_later_version_of_the_log_is_refused_by_version(opened: Opener, place: Path) -> None:
    append(opened(), 1, 2, b"a")
    path = place / chunk_name(1, 0, 0)
    whole = path.read_bytes()
    path.write_bytes(whole[:-10] + (2).to_bytes(2, "little") + whole[-8:])
    with pytest.raises(Refused, match="chunk format 2; this Runnel reads up to 1"):
        list(opened().chunks(Lsn(1)))
    path.write_bytes(whole)
    mark = place / "_log.json"
    mark.write_text(mark.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(Refused, match="has version 2"):
        list(opened().chunks(Lsn(1)))


def test_a_chunk_that_was_trimmed_is_refused_when_opened(opened: Opener, place: Path) -> None:
    append(opened(), 1, 2, b"a")
    with pytest.raises(Refused, match="is gone"):
        opened().open(chunk_name(5, 0, 0))
    with pytest.raises(ValueError, match="not the name"):
        opened().open("../../etc/passwd")


def test_a_log_that_was_lost_and_rebuilt_is_found_again(place: Path) -> None:
    now = [0.0]
    log = local(place)
    assert isinstance(log, DirectoryLog)
    append(log, 10, 20, b"a")
    reader = local(place)
    reader._clock = lambda: now[0]  # type: ignore[attr-defined]
    assert contents(reader, 20) == []
    shutil.rmtree(place)
    rebuilt = local(place)
    append(rebuilt, 10, 25, b"b")  # other borders than before
    append(rebuilt, 25, 30, b"c")
    now[0] += 1000
    assert contents(reader, 20) == [b"b", b"c"]


DYING = """
import sys
sys.path[:0] = sys.argv[2:]
from runnel.log import open_log
from logmaking import append
log = open_log(sys.argv[1])
append(log, 1, 2, b"a")
append(log, 2, 3, b"b")
"""


@pytest.mark.parametrize(
    ("point", "survives"), [("log.chunk.written", [b"a"]), ("log.chunk.visible", [b"a", b"b"])]
)
def test_a_capture_killed_while_appending_leaves_a_whole_log(
    place: Path, point: str, survives: list[bytes]
) -> None:
    here = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", DYING, str(place), str(here), str(here.parent / "src")],
        env={**os.environ, "RUNNEL_FAILPOINTS": f"{point}=kill@2"},
        check=False,
    )
    assert done.returncode == -9
    assert contents(local(place), 1) == survives
    heir = local(place)
    assert heir.sweep() == []
    assert not list(place.glob(".*"))
    end = heir.usage().end
    assert end is not None
    append(heir, end, end + 5, b"c")
    assert contents(local(place), 1) == [*survives, b"c"]


def test_a_full_disk_is_a_transient_error_that_names_the_path(place: Path) -> None:
    log = local(place)
    append(log, 1, 2, b"a")
    waiting = filled(log, header(2, 3), [frame(b"b")])
    spool = waiting.writer.spool  # type: ignore[attr-defined]
    keep, spool.fd = spool.fd, os.open("/dev/full", os.O_RDWR)
    with pytest.raises(RunnelError, match="no space left") as caught:
        log.append([waiting])
    assert caught.value.kind == Kind.TRANSIENT
    assert str(place) in caught.value.message
    os.close(spool.fd)
    spool.fd = keep
    log.append([waiting])  # space was made: the same call again
    assert contents(local(place), 1) == [b"a", b"b"]


def test_bytes_of_a_write_that_failed_half_way_are_not_in_the_chunk(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened()
    part = filled(log, header(100, 200), [frame(b"Ba"), frame(b"Cb")])
    pwrite, room = os.pwrite, [60_000]

    def nearly_full(fd: int, data: memoryview, offset: int) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = pwrite(fd, data[: room[0]], offset)
        room[0] -= written
        return written

    with monkeypatch.context() as disk:
        disk.setattr(os, "pwrite", nearly_full)
        with pytest.raises(RunnelError, match="no space left"):
            part.writer.write(b"x" * 90_000, np.array([90_000], dtype=np.int64))
    log.append([part])
    assert contents(opened(), 100) == [b"Ba", b"Cb"]
