"""The cutter, fed with bytes: where chunks end, what their headers say, what is skipped or dropped."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import pgoutput as pg
from capturing import Change, MemoryLog, MemoryWriter, changes, cutter
from runnel.capture.cutter import Cutter
from runnel.capture.protocol import split
from runnel.errors import Refused, Transient
from runnel.postgres.lsn import Lsn


def feed(target: Cutter, *messages: bytes, now: float = 0.0) -> None:
    frames, _ = split(messages)
    target.feed(frames, now)


def transaction(lsn: int, *rows: str, end: int = 0, relation: bytes = b"", oid: int = 1) -> list[bytes]:
    out = [pg.begin(lsn, lsn), *([relation] if relation else [])]
    out += [pg.insert(oid, row) for row in rows]
    return [*out, pg.commit(lsn, end or lsn + 8)]


ORDERS = pg.relation(1, "orders", ["id"], key=["id"])
WIDER = pg.relation(1, "orders", ["id", "note"], key=["id"])


def test_transactions_share_a_chunk_that_ends_where_the_last_one_ends(tmp_path: Path) -> None:
    log = MemoryLog()
    c = cutter(log, tmp_path)
    feed(c, *transaction(100, "a", "b", relation=ORDERS), *transaction(200, "c"))
    assert not log.chunks
    assert not c.idle
    c.cut()
    assert c.idle
    (header, frames) = log.chunks[0]
    assert (header.start, header.end, c.end) == (0, 208, 208)
    assert (header.transactions, header.changes, len(frames)) == (2, 3, 8)
    assert header.relations == (pg.described(1, "orders", ["id"], key=["id"]),)
    assert not header.changed
    assert not header.schema_change
    assert list(changes(log)) == [Change(100, 0, "a", 1), Change(100, 1, "b", 1), Change(200, 0, "c", 1)]


def test_the_header_has_the_times_of_first_and_last_commit(tmp_path: Path) -> None:
    log = MemoryLog()
    c = cutter(log, tmp_path)
    for lsn in (100, 200, 300):
        feed(c, pg.begin(lsn, 1), ORDERS, pg.insert(1, "x"), pg.commit(lsn, lsn + 1, pg.EPOCH + lsn))
    c.cut()
    assert log.chunks[0][0].first_time == pg.EPOCH + 100
    assert log.chunks[0][0].last_time == pg.EPOCH + 300


def test_a_chunk_is_cut_at_the_first_transaction_that_fills_it(tmp_path: Path) -> None:
    log = MemoryLog()
    one = transaction(100, "x" * 900, relation=ORDERS)
    c = cutter(log, tmp_path, chunk_bytes=2000)
    burst = [*one]
    for lsn in range(200, 1200, 100):
        burst += transaction(lsn, "x" * 900)
    feed(c, *burst)
    c.cut()
    assert len(log.chunks) > 3
    assert all(2000 <= sum(map(len, frames)) < 3200 for _, frames in log.chunks[:-1])
    assert [change.lsn for change in changes(log)] == list(range(100, 1200, 100))


def test_an_open_transaction_waits_for_its_end(tmp_path: Path) -> None:
    log = MemoryLog()
    c = cutter(log, tmp_path)
    feed(c, *transaction(100, "a", relation=ORDERS), pg.begin(200, 2), pg.insert(1, "b"))
    c.cut()
    assert c.end == 108
    assert not c.idle
    feed(c, pg.insert(1, "c"), pg.commit(200, 210))
    c.cut()
    assert [change.what for change in changes(log)] == ["a", "b", "c"]
    assert log.chunks[1][0].relations == log.chunks[0][0].relations


def test_a_large_transaction_gets_parts_that_appear_together(tmp_path: Path) -> None:
    log = MemoryLog()
    c = cutter(log, tmp_path, chunk_bytes=3000)
    feed(c, *transaction(100, "small", relation=ORDERS))
    feed(c, pg.begin(200, 77))
    for i in range(20):
        feed(c, pg.insert(1, f"{i}" + "x" * 500))
        assert len(log.chunks) <= 1
    feed(c, pg.insert(1, "last"), pg.commit(200, 210, pg.EPOCH + 5), *transaction(300, "after"))
    c.cut()
    parts = [(header, header.transaction) for header, _ in log.chunks if header.transaction]
    assert len(parts) > 2
    assert {(header.start, header.end, of.xid, of.time) for header, of in parts} == {
        (108, 210, 77, pg.EPOCH + 5)
    }
    found = list(changes(log))
    assert [change.seq for change in found] == [0, *range(21), 0]
    assert sum(header.transactions for header, _ in log.chunks) == 3


def test_what_the_log_already_holds_is_skipped_but_its_relations_are_not(tmp_path: Path) -> None:
    log = MemoryLog()
    c = cutter(log, tmp_path, end=208)
    feed(c, *transaction(100, "a", relation=ORDERS))
    feed(c, *transaction(200, "b"), *transaction(300, "c"))
    feed(c, *transaction(400, "d"))
    c.cut()
    assert [change.what for change in changes(log)] == ["c", "d"]
    assert log.chunks[0][0].start == 208


def test_the_transaction_that_ended_exactly_at_the_logs_end_is_skipped_and_the_next_is_not(
    tmp_path: Path,
) -> None:
    log = MemoryLog()
    c = cutter(log, tmp_path, end=108)
    feed(c, *transaction(100, "a", relation=ORDERS), *transaction(108, "b", end=120))
    c.cut()
    assert [change.what for change in changes(log)] == ["b"]


def test_a_relation_equal_to_the_last_known_one_is_no_schema_change(tmp_path: Path) -> None:
    log = MemoryLog()
    known = [pg.described(1, "orders", ["id"], key=["id"])]
    c = cutter(log, tmp_path, known=known)
    feed(c, *transaction(100, "a", relation=ORDERS), *transaction(200, "b", relation=ORDERS))
    c.cut()
    assert not log.chunks[0][0].schema_change


def test_a_transaction_that_brings_another_version_has_a_chunk_for_itself(tmp_path: Path) -> None:
    log = MemoryLog()
    c = cutter(log, tmp_path)
    alter = [pg.begin(200, 2), pg.insert(1, "b"), WIDER, pg.insert(1, "c", "n"), pg.commit(200, 208)]
    after = [pg.begin(300, 3), pg.insert(1, "d", "n"), pg.commit(300, 308)]
    feed(c, *transaction(100, "a", relation=ORDERS), *transaction(150, "a"), *alter, *after)
    c.cut()
    assert [header.schema_change for header, _ in log.chunks] == [False, True, False]
    assert [header.transactions for header, _ in log.chunks] == [2, 1, 1]
    header = log.chunks[1][0]
    assert header.relations == (pg.described(1, "orders", ["id"], key=["id"]),)
    assert header.changed == ((2, pg.described(1, "orders", ["id", "note"], key=["id"])),)
    assert [change.columns for change in changes(log)] == [1, 1, 1, 2, 2]


def test_a_transaction_cut_by_a_burst_that_brings_another_version_has_a_chunk_for_itself(
    tmp_path: Path,
) -> None:
    log = MemoryLog()
    c = cutter(log, tmp_path)
    feed(c, *transaction(100, "a", relation=ORDERS), pg.begin(200, 2), WIDER)
    feed(c, pg.insert(1, "c", "n"), pg.commit(200, 208), pg.begin(300, 3), pg.insert(1, "d", "n"))
    feed(c, pg.commit(300, 308))
    c.cut()
    assert [header.schema_change for header, _ in log.chunks] == [False, True, False]


def test_a_schema_change_whose_chunk_was_lost_is_one_again(tmp_path: Path) -> None:
    log = MemoryLog()
    c = cutter(log, tmp_path)
    feed(c, *transaction(100, "a", relation=ORDERS))
    c.cut()
    wider = [pg.begin(200, 2), WIDER, pg.insert(1, "b", "n"), pg.commit(200, 208)]
    feed(c, *wider)
    c.disconnected()
    assert not log.open_writers
    feed(c, *wider)
    c.cut()
    assert log.chunks[1][0].schema_change


def test_a_relation_in_a_transaction_that_opens_a_new_chunk_belongs_to_that_chunk(
    tmp_path: Path,
) -> None:
    log = MemoryLog()
    c = cutter(log, tmp_path)
    feed(c, *transaction(100, "a", relation=ORDERS), pg.begin(200, 2), WIDER)
    c.cut()
    feed(c, pg.insert(1, "b", "n"), pg.commit(200, 208))
    c.cut()
    assert not log.chunks[0][0].schema_change
    assert log.chunks[1][0].schema_change
    assert [change.columns for change in changes(log)] == [1, 2]


def test_a_chunk_names_only_the_tables_it_touches(tmp_path: Path) -> None:
    log = MemoryLog()
    c = cutter(log, tmp_path)
    for oid in (1, 2, 3):
        relation = pg.relation(oid, f"t{oid}", ["id"])
        feed(c, *transaction(100 * oid, "x", relation=relation, oid=oid))
    c.cut()
    feed(c, *transaction(500, "y", oid=2))
    c.cut()
    assert [r.name for r in log.chunks[0][0].relations] == ["t1", "t2", "t3"]
    assert [r.name for r in log.chunks[1][0].relations] == ["t2"]


def test_truncate_counts_each_table_and_a_message_counts_one(tmp_path: Path) -> None:
    log = MemoryLog()
    c = cutter(log, tmp_path)
    feed(
        c,
        pg.begin(100, 1),
        ORDERS,
        pg.relation(2, "lines", ["id"]),
        pg.truncate(1, 2),
        pg.message(90, "app", b"hello", transactional=True),
        pg.insert(1, "a"),
        pg.commit(100, 108),
    )
    c.cut()
    assert log.chunks[0][0].changes == 4
    assert [r.name for r in log.chunks[0][0].relations] == ["orders", "lines"]
    assert [change.seq for change in changes(log)] == [0, 1, 2, 3]


def test_a_message_outside_transactions_ends_its_chunk_one_byte_behind_itself(tmp_path: Path) -> None:
    log = MemoryLog()
    c = cutter(log, tmp_path)
    feed(c, pg.message(150, "app", b"hello", transactional=False))
    c.cut()
    assert (c.end, c.idle) == (151, True)
    assert list(changes(log)) == [Change(150, 0, "hello", 0)]
    c.disconnected()
    feed(c, pg.message(150, "app", b"hello", transactional=False), *transaction(200, "a", relation=ORDERS))
    c.cut()
    assert [change.what for change in changes(log)] == ["hello", "a"]


def test_a_chunk_of_messages_alone_has_the_time_they_were_sent_at(tmp_path: Path) -> None:
    log = MemoryLog()
    c = cutter(log, tmp_path)
    sent = bytearray(pg.message(150, "app", b"hello", transactional=False))
    sent[17:25] = (777).to_bytes(8, "big")
    feed(c, bytes(sent))
    c.cut()
    header = log.chunks[0][0]
    assert (header.first_time, header.last_time) == (pg.EPOCH + 777, pg.EPOCH + 777)
    assert header.transactions == 0


def test_empty_transactions_leave_no_frames_but_the_log_moves_past_them(tmp_path: Path) -> None:
    log = MemoryLog()
    c = cutter(log, tmp_path)
    feed(c, *transaction(100), *transaction(200, "a", relation=ORDERS), *transaction(300))
    c.cut()
    assert len(log.chunks[0][1]) == 4
    assert c.end == 308
    feed(c, *transaction(400), *transaction(500))
    assert c.idle
    assert (c.end, c.passed) == (308, 508)
    c.advance(c.passed)
    assert (c.end, len(log.chunks[1][1])) == (508, 0)


def test_an_idle_advance_never_goes_back(tmp_path: Path) -> None:
    log = MemoryLog()
    c = cutter(log, tmp_path, end=100)
    c.advance(c.end)
    assert not log.chunks
    c.advance(type(c.end)(150))
    assert c.end == 150


def test_a_chunk_is_due_after_the_linger_and_a_busy_one_later(tmp_path: Path) -> None:
    c = cutter(MemoryLog(), tmp_path, chunk_bytes=8000)
    assert not c.due(0.0, 0.05)
    feed(c, *transaction(100, "a", relation=ORDERS), now=10.0)
    assert not c.due(10.01, 0.05)
    assert c.due(10.06, 0.05)
    feed(c, *transaction(200, "x" * 2000), now=10.02)
    assert not c.due(10.06, 0.05)
    assert c.due(10.21, 0.05)


def test_a_full_log_loses_nothing_after_the_reconnection(tmp_path: Path) -> None:
    log = MemoryLog(full=True)
    c = cutter(log, tmp_path)
    feed(c, *transaction(100, "a", relation=ORDERS))
    with pytest.raises(OSError, match="No space"):
        c.cut()
    c.disconnected()
    assert not log.open_writers
    log.full = False
    feed(c, *transaction(100, "a", relation=ORDERS))
    c.cut()
    assert [change.what for change in changes(log)] == ["a"]


# streamed transactions


def test_a_streamed_transaction_appears_at_its_commit_in_commit_order(tmp_path: Path) -> None:
    log = MemoryLog()
    c = cutter(log, tmp_path)
    feed(
        c,
        pg.stream_start(7, first=True),
        pg.relation(1, "orders", ["id"], xid=7),
        pg.insert(1, "s1", xid=7),
    )
    feed(c, pg.insert(1, "s2", xid=7), pg.stream_stop(), *transaction(100, "plain", relation=ORDERS))
    feed(c, pg.stream_start(7, first=False), pg.insert(1, "s3", xid=7), pg.stream_stop())
    assert [header.end for header, _ in log.chunks] == []
    feed(c, pg.stream_commit(7, 300, 310, pg.EPOCH + 9), *transaction(400, "after"))
    c.cut()
    assert [change.what for change in changes(log)] == ["plain", "s1", "s2", "s3", "after"]
    header = log.chunks[1][0]
    assert (header.streamed, header.start, header.end) == (True, 108, 310)
    assert header.transaction is not None
    assert (header.transaction.xid, header.transaction.lsn) == (7, 300)
    assert not list((tmp_path / "spool").iterdir())


def test_a_rolled_back_streamed_transaction_leaves_nothing(tmp_path: Path) -> None:
    log = MemoryLog()
    c = cutter(log, tmp_path)
    feed(
        c, pg.stream_start(7, first=True), pg.insert(1, "x", xid=7), pg.stream_stop(), pg.stream_abort(7, 7)
    )
    assert c.idle
    assert not list((tmp_path / "spool").iterdir())


@pytest.mark.parametrize("abort_lsn", [None, 12345])
def test_rolled_back_sub_transactions_drop_out_nested_ones_too(
    tmp_path: Path, abort_lsn: int | None
) -> None:
    log = MemoryLog()
    c = cutter(log, tmp_path)
    feed(
        c, pg.stream_start(7, first=True), pg.relation(1, "orders", ["id"], xid=7), pg.insert(1, "a", xid=7)
    )
    feed(
        c, pg.insert(1, "b8", xid=8), pg.insert(1, "c9", xid=9), pg.insert(1, "d8", xid=8), pg.stream_stop()
    )
    feed(c, pg.stream_abort(7, 9, abort_lsn))
    feed(c, pg.stream_start(7, first=False), pg.insert(1, "e10", xid=10), pg.stream_stop())
    feed(c, pg.stream_abort(7, 12, abort_lsn))
    feed(c, pg.stream_start(7, first=False), pg.insert(1, "f", xid=7), pg.stream_stop())
    feed(c, pg.stream_commit(7, 300, 310))
    assert [change.what for change in changes(log)] == ["a", "b8", "e10", "f"]


def test_a_relation_sent_inside_a_rolled_back_sub_transaction_still_counts(tmp_path: Path) -> None:
    log = MemoryLog()
    c = cutter(log, tmp_path)
    feed(
        c,
        pg.stream_start(7, first=True),
        pg.relation(1, "orders", ["id"], xid=8),
        pg.insert(1, "gone", xid=8),
    )
    feed(c, pg.stream_stop(), pg.stream_abort(7, 8))
    feed(c, pg.stream_start(7, first=False), pg.insert(1, "kept", xid=7), pg.stream_stop())
    feed(c, pg.stream_commit(7, 300, 310))
    assert list(changes(log)) == [Change(300, 0, "kept", 1)]


def test_a_relation_of_a_rolled_back_transaction_does_not_count(tmp_path: Path) -> None:
    log = MemoryLog()
    c = cutter(log, tmp_path)
    feed(c, *transaction(100, "a", relation=ORDERS))
    wider = pg.relation(1, "orders", ["id", "note"], key=["id"], xid=7)
    feed(c, pg.stream_start(7, first=True), wider, pg.insert(1, "x", "y", xid=7), pg.stream_stop())
    feed(c, pg.stream_abort(7, 7), *transaction(200, "b"))
    c.cut()
    assert [change.columns for change in changes(log)] == [1, 1]
    assert not any(header.schema_change for header, _ in log.chunks)


def test_a_streamed_transaction_spans_parts_in_order(tmp_path: Path) -> None:
    log = MemoryLog()
    c = cutter(log, tmp_path, chunk_bytes=1 << 20)
    feed(c, pg.stream_start(7, first=True), pg.relation(1, "orders", ["id"], xid=7))
    for i in range(80):
        feed(c, *[pg.insert(1, f"{i}.{k}" + "x" * 1000, xid=7) for k in range(100)])
    feed(c, pg.stream_stop(), pg.stream_commit(7, 300, 310))
    assert len(log.chunks) == log.chunks[0][0].parts > 2
    assert [change.seq for change in changes(log)] == list(range(8000))


def test_spools_do_not_outlive_the_connection(tmp_path: Path) -> None:
    log = MemoryLog()
    c = cutter(log, tmp_path)
    first = [
        pg.stream_start(7, first=True),
        pg.relation(1, "orders", ["id"], xid=7),
        pg.insert(1, "a", xid=7),
    ]
    feed(c, *first)
    c.disconnected()
    assert not (tmp_path / "spool").exists()
    feed(c, *first, pg.stream_stop(), pg.stream_commit(7, 300, 310))
    assert [change.what for change in changes(log)] == ["a"]


def test_a_commit_of_a_transaction_never_streamed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Transient, match="7"):
        feed(cutter(MemoryLog(), tmp_path), pg.stream_commit(7, 300, 310))


def test_a_message_type_of_the_future_is_refused() -> None:
    with pytest.raises(Refused, match="'z'"):
        split([pg.frame(b"z")])


def test_keepalives_are_told_apart_from_data() -> None:
    frames, alive = split(
        [pg.begin(1, 1), pg.keepalive(500, reply=True), pg.commit(1, 2), pg.keepalive(600)]
    )
    assert bytes(frames.kind) == b"BC"
    assert [(k.wal_end, k.reply) for k in alive] == [(500, True), (600, False)]


def test_after_a_burst_that_was_taken_half_nothing_reaches_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MemoryLog()
    c = cutter(log, tmp_path)
    feed(c, *transaction(100, "a", relation=ORDERS))
    feed(c, pg.begin(200, 2), pg.insert(1, "b"))
    write = MemoryWriter.write

    def nearly_full(self: MemoryWriter, data: memoryview, lengths: npt.NDArray[np.int64]) -> None:
        if len(data) > 4000:
            raise OSError(28, "No space left on device")
        write(self, data, lengths)

    with monkeypatch.context() as disk:
        disk.setattr(MemoryWriter, "write", nearly_full)
        with pytest.raises(OSError, match="No space"):
            feed(c, pg.insert(1, "x" * 5000), pg.commit(200, 208))
    c.cut()
    c.advance(Lsn(300))
    assert not log.chunks
    c.disconnected()
    feed(c, *transaction(100, "a", relation=ORDERS), *transaction(200, "b", "c"))
    c.cut()
    assert list(changes(log)) == [Change(100, 0, "a", 1), Change(200, 0, "b", 1), Change(200, 1, "c", 1)]
    assert log.chunks[0][0].changes == 3


def test_parts_of_one_huge_transaction_hold_no_memory_per_frame_while_they_wait(tmp_path: Path) -> None:
    """Three million changes would be twelve megabytes of frame lengths, and so on."""
    import tracemalloc

    from runnel.log import open_log

    log = open_log(str(tmp_path / "log"))
    c = cutter(log, tmp_path, chunk_bytes=1 << 20)
    feed(c, pg.begin(1000, 7), ORDERS)
    row = pg.insert(1, "x")
    burst, _ = split([row] * 10_000)
    tracemalloc.start()
    try:
        c.feed(burst, 0.0)
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(299):
            c.feed(burst, 0.0)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    feed(c, pg.commit(1000, 1008))
    assert grown < 3 << 20, f"{grown:,} bytes"
    refs = list(log.chunks(Lsn(0)))
    assert sum(ref.changes for ref in refs) == 3_000_000
    for ref in (refs[0], refs[-1]):
        with closing(log.open(ref.name)) as reader:
            assert sum(len(piece.offsets) - 1 for piece in reader.pieces()) >= ref.changes
