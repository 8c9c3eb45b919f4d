"""Capture against a real server: what commits stands in the log, once, in order, whatever happens."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from captured import TABLE, Captured
from capturing import changes
from runnel.capture import service, session, stream
from runnel.capture.transport import LibpqTransport
from runnel.capture.trouble import Unconfirmed
from runnel.config import load
from runnel.errors import Refused, RunnelError
from runnel.log import open_log
from runnel.postgres.lsn import Lsn
from runnel.progress.state import CAPTURE, State
from servers import Database, MakeServer, await_condition

Make = Callable[..., Captured]


@pytest.fixture
def make(pg: Database, tmp_path: Path) -> Make:
    pg.execute(TABLE)

    def made(log: dict[str, Any] | None = None, **source: Any) -> Captured:
        return Captured(pg.url, tmp_path, log or {}, source)

    return made


def test_commits_reach_the_log_in_commit_order_and_a_restart_repeats_none(make: Make) -> None:
    c = make()
    c.execute("INSERT INTO t VALUES (1, 'a')")
    with c.running():
        c.execute("INSERT INTO t VALUES (2, 'b'), (3, 'c')")
        c.await_ids(1, 2, 3)
    assert c.state() == "stopped"
    c.execute("INSERT INTO t VALUES (4, 'd')")
    with c.running():
        c.execute("INSERT INTO t VALUES (5, 'e')")
        c.await_ids(1, 2, 3, 4, 5)
    assert [header.epoch for header in c.headers()][-1] == 2
    assert not any(header.schema_change for header in c.headers())


def test_a_stop_confirms_what_the_pipelines_have_and_no_more(make: Make) -> None:
    c = make()
    with c.running():
        c.execute("INSERT INTO t VALUES (1, 'a')")
        c.await_ids(1)
        first = c.headers()[0].end
        c.deliver(first)
        c.execute("INSERT INTO t VALUES (2, 'b')")
        c.await_ids(1, 2)
    assert first <= c.confirmed() < c.headers()[-1].end


@pytest.mark.parametrize("confirm", [True, False], ids=["at the end of --once", "at a plain stop"])
def test_a_slot_that_does_not_show_what_was_delivered_fails_only_the_end_of_once(
    make: Make, monkeypatch: pytest.MonkeyPatch, confirm: bool
) -> None:
    c = make()
    monkeypatch.setattr(session, "_LAST_WORD", 0.2)
    monkeypatch.setattr(stream.ReplicationStream, "_send", lambda *_, **__: None)
    with c.running(confirm=confirm):
        c.execute("INSERT INTO t VALUES (1, 'a')")
        c.await_ids(1)
        c.deliver(c.headers()[-1].end)
    assert c.confirmed() < c.headers()[0].end
    if confirm:
        assert isinstance(c.failure, Unconfirmed)
        assert c.slot in str(c.failure)
    else:
        assert c.failure is None
        assert c.state() == "stopped"


def test_a_slot_that_is_gone_at_the_stop_is_not_told_as_nothing_lost(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = make()
    slot = f"FROM pg_replication_slots WHERE slot_name = '{c.slot}'"
    last_step = session.Session._record_what_is_quiet

    def drop_the_slot(self: session.Session) -> None:
        last_step(self)
        c.execute(f"SELECT pg_terminate_backend(active_pid) {slot}")
        await_condition(lambda: not c.one(f"SELECT active {slot}"))
        c.execute(f"SELECT pg_drop_replication_slot(slot_name) {slot}")

    monkeypatch.setattr(session.Session, "_record_what_is_quiet", drop_the_slot)
    monkeypatch.setattr(stream.ReplicationStream, "_send", lambda *_, **__: None)
    with c.running():
        c.execute("INSERT INTO t VALUES (1, 'a')")
        c.await_ids(1)
        c.deliver(c.headers()[-1].end)
    assert isinstance(c.failure, Refused)
    assert f"slot '{c.slot}' does not exist any more" in str(c.failure)


def test_what_a_pipeline_delivers_again_is_not_trimmed_meanwhile(make: Make) -> None:
    c = make()

    def first() -> Lsn | None:
        return open_log(c.path).usage().first

    with c.running(), State.connect(c.url, "shop") as state:
        for number in range(3):
            c.execute(f"INSERT INTO t VALUES ({number}, 'a')")
            c.await_chunks(number + 1)
        chunks = c.headers()
        position = state.claim_pipeline("p")
        state.hold("p", chunks[1].start)
        # it had everything once: the slot may forget it, the log may not
        state.connection.execute("UPDATE runnel.progress SET lsn = %s", [str(chunks[2].end)])
        await_condition(lambda: c.confirmed() >= chunks[2].end)
        await_condition(lambda: first() == chunks[1].start)
        state.store_position("p", position.at(chunks[2].end))
        assert state.pipelines()["p"].hold is None
        await_condition(lambda: (first() or 0) >= chunks[2].start)


def test_the_slot_follows_the_pipeline_while_capture_runs_and_the_log_is_trimmed(make: Make) -> None:
    c = make()
    with c.running():
        for number in range(3):
            c.execute(f"INSERT INTO t VALUES ({number}, 'a')")
            c.await_chunks(number + 1)
        end = c.headers()[-1].end
        c.deliver(end)
        await_condition(lambda: c.confirmed() >= end)
        await_condition(lambda: len(c.headers()) <= 2)


def test_what_is_kept_for_replay_is_counted_by_the_servers_clock(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = time.time
    monkeypatch.setattr(time, "time", lambda: ours() + 7200)  # this machine is ahead
    c = make({"retain": "1h"})
    with c.running():
        for number in range(3):
            c.execute(f"INSERT INTO t VALUES ({number}, 'a')")
            c.await_ids(*range(number + 1))
            end = c.headers()[-1].end
            c.deliver(end)
            c.await_confirmed(end)
    assert c.ids() == [0, 1, 2]


def test_acknowledging_the_log_does_not_wait_for_pipelines(make: Make) -> None:
    c = make(ack="log")
    with c.running():
        c.execute("INSERT INTO t VALUES (1, 'a')")
        c.await_ids(1)
        end = c.headers()[0].end
        await_condition(lambda: c.confirmed() >= end)
        assert c.ids() == [1]


def test_an_idle_source_advances_without_a_single_change(
    make: Make, pg: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_ADVANCE", 0.3)
    pg.execute("CREATE TABLE unpublished (id int)")
    c = make(tables=["public.t"])
    before = c.confirmed()
    with c.running():
        c.execute("INSERT INTO unpublished SELECT generate_series(1, 1000)")
        target = Lsn.parse(c.one("SELECT pg_current_wal_insert_lsn()::text"))
        await_condition(lambda: c.confirmed() >= target > before)
        assert all(header.changes == 0 for header in c.headers())
    with c.running():
        c.execute("INSERT INTO t VALUES (1, 'a')")
        c.await_ids(1)


def test_while_a_pipeline_stands_still_an_idle_source_makes_fewer_and_fewer_chunks(
    make: Make, pg: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_ADVANCE", 0.1)
    pg.execute("CREATE TABLE unpublished (id int)")
    c = make(tables=["public.t"])
    with c.running():
        c.execute("INSERT INTO t VALUES (1, 'a')")
        c.await_ids(1)
        begun = time.monotonic()

        def written() -> bool:
            c.execute("INSERT INTO unpublished VALUES (1)")
            return time.monotonic() - begun > 4

        await_condition(written, what="forty times the pause has passed")
        row = next(number for number, header in enumerate(c.headers()) if header.changes)
        assert 1 <= len(c.headers()[row + 1 :]) <= 7, "after 0.1 s, 0.2 s, 0.4 s, ..."
        c.deliver(c.headers()[-1].end)
        target = Lsn.parse(c.one("SELECT pg_current_wal_insert_lsn()::text"))
        await_condition(lambda: c.confirmed() >= target, what="the slot moves on as before")


def test_a_streamed_transaction_keeps_only_what_was_not_rolled_back(make: Make, pg: Database) -> None:
    pg.execute(f"ALTER DATABASE \"{pg.name}\" SET logical_decoding_work_mem = '64kB'")
    c = make({"chunk_bytes": "64KiB"})
    with c.running(), psycopg.connect(c.url) as connection:
        rows = "INSERT INTO t SELECT g, repeat('x', 200) FROM generate_series({}, {}) g"
        for base in (0, 10_000):
            connection.execute(f"SAVEPOINT a; {rows.format(base + 1, base + 999)}".encode())
            connection.execute(f"SAVEPOINT b; {rows.format(base + 1000, base + 1999)}".encode())
            connection.execute(f"SAVEPOINT c; {rows.format(base + 2000, base + 2999)}".encode())
            connection.execute(b"RELEASE c; ROLLBACK TO b")
            connection.execute(rows.format(base + 3000, base + 3999).encode())
            connection.execute(b"RELEASE b; RELEASE a")
            connection.execute(f"SAVEPOINT d; {rows.format(base + 4000, base + 4999)}".encode())
            connection.execute(b"ROLLBACK TO d")
        c.execute("INSERT INTO t VALUES (-1, 'meanwhile')")
        connection.commit()
        kept = [*range(1, 1000), *range(3000, 4000), *range(10_001, 11_000), *range(13_000, 14_000)]
        c.await_ids(-1, *kept)
    streamed = [header for header in c.headers() if header.streamed]
    assert len(streamed) == streamed[0].parts > 1


def test_a_table_first_seen_in_a_rolled_back_savepoint_can_still_be_decoded(
    make: Make, pg: Database
) -> None:
    pg.execute(f"ALTER DATABASE \"{pg.name}\" SET logical_decoding_work_mem = '64kB'")
    c = make()
    with c.running(), psycopg.connect(c.url) as connection:
        rows = "INSERT INTO t SELECT g, repeat('x', 200) FROM generate_series({}, {}) g"
        connection.execute(f"SAVEPOINT a; {rows.format(1, 3000)}".encode())
        connection.execute(b"ROLLBACK TO a")
        connection.execute(rows.format(5000, 7000).encode())
        connection.commit()
        c.await_ids(*range(5000, 7001))


def test_a_whole_streamed_transaction_rolled_back_leaves_nothing(make: Make, pg: Database) -> None:
    pg.execute(f"ALTER DATABASE \"{pg.name}\" SET logical_decoding_work_mem = '64kB'")
    c = make()
    with c.running():
        with psycopg.connect(c.url) as connection:
            connection.execute("INSERT INTO t SELECT g, repeat('x', 200) FROM generate_series(1, 5000) g")
            connection.rollback()
        c.execute("INSERT INTO t VALUES (7, 'after')")
        c.await_ids(7)
    assert not list((Path(c.path) / "_spool").glob("*"))


def test_a_large_transaction_without_streaming_spans_parts(make: Make) -> None:
    c = make({"chunk_bytes": "64KiB"}, streaming=False)
    with c.running():
        c.execute("INSERT INTO t VALUES (-1, 'before')")
        c.execute("INSERT INTO t SELECT g, repeat('x', 500) FROM generate_series(1, 20000) g")
        c.await_ids(-1, *range(1, 20_001))
    whole = [header for header in c.headers() if header.transaction and not header.streamed]
    assert len(whole) == whole[0].parts > 1


def test_truncates_and_messages_are_captured(make: Make) -> None:
    c = make()
    with c.running():
        c.execute("INSERT INTO t VALUES (1, 'a')", "TRUNCATE t")
        c.execute("SELECT pg_logical_emit_message(true, 'app', 'inside')")
        c.execute("SELECT pg_logical_emit_message(false, 'app', 'outside')")
        c.execute("INSERT INTO t VALUES (2, 'b')")
        await_condition(lambda: len(c.changes()) == 5)
        what = [change.what for change in c.changes()]
        assert [what[0], *what[2:]] == ["1", "inside", "outside", "2"]
        assert what[1].startswith("truncate")


def test_an_altered_table_is_a_schema_change_from_its_row_on(make: Make) -> None:
    c = make()
    with c.running():
        c.execute("INSERT INTO t VALUES (1, 'a')", "ALTER TABLE t ADD COLUMN w int")
        c.execute("INSERT INTO t VALUES (2, 'b', 3)")
        c.await_ids(1, 2)
    assert [change.columns for change in c.changes()] == [2, 3]
    assert any(header.schema_change for header in c.headers())


def test_the_primary_key_is_known_under_replica_identity_full_and_after_the_table_is_gone(
    make: Make,
) -> None:
    c = make()
    c.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    with c.running():
        c.execute("INSERT INTO t VALUES (1, 'a')")
        c.await_ids(1)
    c.execute("INSERT INTO t VALUES (2, 'b')", "DROP TABLE t")
    with c.running():
        c.await_ids(1, 2)
    assert {relation.key for header in c.headers() for relation in header.relations} == {(0,)}


def test_a_primary_key_dropped_under_replica_identity_full_is_no_key_any_more(make: Make) -> None:
    c = make()
    c.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    with c.running():
        c.execute("INSERT INTO t VALUES (1, 'a')")
        c.await_ids(1)
        c.execute("ALTER TABLE t DROP CONSTRAINT t_pkey", "INSERT INTO t VALUES (2, 'b')")
        c.await_ids(1, 2)
    first, last = (
        [r.key for header in c.headers() for r in (*header.relations, *(v for _, v in header.changed))][at]
        for at in (0, -1)
    )
    assert (first, last) == ((0,), ())


def test_a_full_log_pauses_capture_which_still_answers_the_server(make: Make, pg: Database) -> None:
    pg.execute(f"ALTER DATABASE \"{pg.name}\" SET wal_sender_timeout = '1s'")
    c = make({"chunk_bytes": "4KiB", "max_bytes": "64KiB"})
    sender = "SELECT pid FROM pg_stat_replication WHERE application_name = 'runnel shop capture'"
    with c.running():
        pid = c.one(sender)
        for number in range(100):
            c.execute(f"INSERT INTO t VALUES ({number}, repeat('x', 2000))")
        await_condition(lambda: c.state() == "paused")
        assert "'p'" in c.detail()["why"]
        paused = time.monotonic()
        await_condition(lambda: time.monotonic() - paused > 3.5)
        assert c.one(sender) == pid
        seen: set[int] = set()

        def all_delivered() -> bool:
            log = c.log()
            seen.update(int(change.what) for change in changes(log))
            c.deliver(log.chunks[-1][0].end)
            return len(seen) == 100

        await_condition(all_delivered, 60, every=0.2)
        await_condition(lambda: c.state() == "streaming")
        assert c.one(sender) == pid


def test_a_killed_walsender_is_replaced_and_nothing_is_lost_or_doubled(make: Make) -> None:
    c = make()
    with c.running():
        c.execute("INSERT INTO t VALUES (1, 'a')")
        c.await_ids(1)
        c.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_replication WHERE application_name ~ 'shop'"
        )
        c.execute("INSERT INTO t VALUES (2, 'b')")
        c.await_ids(1, 2)
        c.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name ~ 'runnel'"
            " AND datname = current_database()"
        )
        c.execute("INSERT INTO t VALUES (3, 'c')")
        c.await_ids(1, 2, 3)
    assert c.failure is None


def test_a_restarted_server_is_found_again_and_its_stop_is_not_held_up(
    make_server: MakeServer, tmp_path: Path
) -> None:
    server = make_server(18)
    with server.connect() as connection:
        connection.execute(TABLE.encode())
    c = Captured(server.url(), tmp_path, {}, {})
    with c.running():
        c.execute("INSERT INTO t VALUES (1, 'a')")
        c.await_ids(1)
        begun = time.monotonic()
        server.restart()
        assert time.monotonic() - begun < 30
        c.execute("INSERT INTO t VALUES (2, 'b')")
        c.await_ids(1, 2)
        server.crash()
        server.start()
        c.execute("INSERT INTO t VALUES (3, 'c')")
        c.await_ids(1, 2, 3)
    assert c.failure is None


def test_a_second_capture_is_refused_and_does_not_touch_the_firsts_state(make: Make) -> None:
    c = make()
    with c.running():
        with pytest.raises(Refused, match="running"):
            service.run(c.config, threading.Event())
        assert c.state() == "streaming"


def test_without_a_subscription_capture_says_what_to_do(pg: Database, tmp_path: Path) -> None:
    config = load(
        None, {"source": {"url": pg.url, "name": "none"}, "log": str(tmp_path / "log")}, default=None
    )
    with pytest.raises(RunnelError) as caught:
        service.run(config, threading.Event())
    assert "runnel init" in caught.value.hint


def test_a_dropped_slot_is_refused_with_a_remedy(make: Make) -> None:
    c = make()
    c.execute(f"SELECT pg_drop_replication_slot('{c.slot}')")
    with pytest.raises(Refused, match="does not exist") as caught:
        service.run(c.config, threading.Event())
    assert "runnel init" in caught.value.hint
    assert c.state() == "failed"


BROKEN_PUBLICATIONS = {
    "does not exist any more": ["DROP PUBLICATION shop"],
    "was made anew": ["DROP PUBLICATION shop", "CREATE PUBLICATION shop FOR ALL TABLES"],
    "does not publish update": ["ALTER PUBLICATION shop SET (publish = 'insert, delete, truncate')"],
}


@pytest.mark.parametrize("says", BROKEN_PUBLICATIONS)
@pytest.mark.parametrize("when", ["_ADVANCE", "_SOURCE", "acknowledging"])
def test_what_a_broken_publication_left_out_is_neither_passed_nor_confirmed(
    make: Make, monkeypatch: pytest.MonkeyPatch, when: str, says: str
) -> None:
    for pause in ("_ADVANCE", "_SOURCE"):
        monkeypatch.setattr(session, pause, 0.3 if pause == when else 3600)
    c = make()
    with c.running():
        c.execute("INSERT INTO t VALUES (1, 'a')")
        c.await_ids(1)
        end = c.headers()[-1].end
        c.deliver(end)
        await_condition(lambda: c.confirmed() >= end)
        with psycopg.connect(c.url) as connection:  # at once: between two looks
            for statement in BROKEN_PUBLICATIONS[says]:
                connection.execute(statement.encode())
        c.execute("UPDATE t SET v = 'lost'")
        lost = Lsn.parse(c.one("SELECT pg_current_wal_insert_lsn()::text"))
        if when == "acknowledging":  # messages need no publication
            c.execute("SELECT pg_logical_emit_message(true, 'runnel', '')")
            await_condition(lambda: c.failure or c.headers()[-1].end > lost)
            c.deliver(c.headers()[-1].end)
        await_condition(lambda: c.failure, what="a refusal")
    assert isinstance(c.failure, Refused)
    assert says in str(c.failure)
    assert c.confirmed() < lost
    assert "runnel destroy && runnel init" in c.failure.hint
    with pytest.raises(Refused, match=says):  # nor after a restart
        service.run(c.config, threading.Event())


def test_a_slot_advanced_by_somebody_else_is_refused(make: Make) -> None:
    c = make()
    with c.running():
        c.execute("INSERT INTO t VALUES (1, 'a')")
        c.await_ids(1)
    c.execute("INSERT INTO t VALUES (2, 'b')")
    c.execute(f"SELECT pg_replication_slot_advance('{c.slot}', pg_current_wal_lsn())")
    with pytest.raises(Refused, match="somebody else"):
        service.run(c.config, threading.Event())


def test_a_new_table_joins_while_capture_runs(make: Make) -> None:
    c = make(reconcile=0.2)
    with c.running():
        c.execute("CREATE TABLE late (id int PRIMARY KEY)")
        await_condition(
            lambda: c.one("SELECT count(*) FROM pg_publication_tables WHERE tablename = 'late'")
        )
        c.execute("INSERT INTO late VALUES (9)")
        c.await_ids(9)


def test_the_state_names_capture_as_the_owner_only_while_it_runs(make: Make) -> None:
    c = make()
    with c.running(), State.connect(c.url, "shop") as state:
        assert state.owner(CAPTURE) is not None
    with State.connect(c.url, "shop") as state:
        await_condition(lambda: state.owner(CAPTURE) is None)


def test_libpq_reads_the_same_stream_where_the_socket_is_not_plain(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "choose", lambda conn, server, **_: LibpqTransport(conn, server))
    c = make({"chunk_bytes": "64KiB"})
    with c.running():
        c.execute("INSERT INTO t VALUES (-1, repeat('x', 3000000))")
        c.execute("INSERT INTO t SELECT g, repeat('x', 500) FROM generate_series(1, 20000) g")
        c.await_ids(-1, *range(1, 20_001))
        c.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_replication WHERE application_name ~ 'shop'"
        )
        c.execute("INSERT INTO t VALUES (-2, 'after')")
        c.await_ids(-1, *range(1, 20_001), -2)


def test_a_hundred_thousand_sub_transactions_fit_into_little_memory(
    make: Make, pg: Database, runnel_cli: Any
) -> None:
    pg.execute(f"ALTER DATABASE \"{pg.name}\" SET logical_decoding_work_mem = '1MB'")
    c = make()
    config = runnel_cli.config(
        f"source: {{url: '{c.url}', name: shop}}\nlog: {c.path}\n"
        "pipelines: {p: {sink: {type: stdout}}}\n"
    )
    process = runnel_cli.start("-c", str(config), "capture")
    await_condition(lambda: c.state() == "streaming")
    c.execute(
        """DO $$ BEGIN FOR i IN 1..100000 LOOP
             BEGIN
               INSERT INTO t VALUES (i, repeat('x', 100));
               IF i % 10 = 0 THEN RAISE division_by_zero; END IF;
             EXCEPTION WHEN division_by_zero THEN NULL; END;
           END LOOP; END $$"""
    )
    end = Lsn.parse(c.one("SELECT pg_current_wal_insert_lsn()::text"))
    await_condition(lambda: sum(header.changes for header in c.headers()) == 90_000, 90, every=0.3)
    assert psutil.Process(process.pid).memory_info().rss < 200 << 20
    assert c.ids() == [i for i in range(1, 100_001) if i % 10]
    c.deliver(c.headers()[-1].end)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert c.headers()[-1].end >= c.confirmed() >= end
