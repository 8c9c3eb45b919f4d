from __future__ import annotations

import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psycopg
import pytest

from runnel.demo.server import Server
from runnel.errors import Kind, Refused, RunnelError
from runnel.log.api import Lineage
from runnel.postgres.connect import connect as open_connection
from runnel.postgres.lsn import Lsn
from runnel.progress import schema
from runnel.progress.owners import OWNER_VARIABLE
from runnel.progress.position import Position
from runnel.progress.state import State
from runnel.sinks.api import Reject
from servers import Database, Proxy

Connect = Callable[[], psycopg.Connection]

ID = uuid.UUID("1f2e3d4c-0000-4000-8000-000000000000")


@pytest.fixture
def made(state: State) -> State:
    state.install()
    state.create_subscription(ID, "shop_1f2e3d4c", "shop", "7400", 1)
    state.complete_subscription(Lsn(100), ["copy", "events"])
    return state


@pytest.fixture
def other(url: str) -> Iterator[State]:
    with State.connect(url, "shop", application="the other") as found:
        yield found


def reject(lsn: int, key: str | None, *, seq: int = 0, old_key: str | None = None) -> Reject:
    return Reject(Lsn(lsn), seq, "public.t", key, '{"op":"insert"}', "too long", old_key)


def test_nothing_is_there_before_install(state: State) -> None:
    assert state.subscription() is None
    with pytest.raises(RunnelError, match="does not exist") as caught:
        state.known()
    assert caught.value.hint == "runnel init"


def test_two_installs_at_once_make_one_schema(url: str) -> None:
    with ExitStack() as stack:
        states = [stack.enter_context(State.connect(url, "shop")) for _ in range(4)]
        threads = [threading.Thread(target=state.install) for state in states]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(state.installed() for state in states)


def test_a_schema_of_a_later_version_is_refused(made: State) -> None:
    made.connection.execute("UPDATE runnel.meta SET version = version + 1")
    with pytest.raises(Refused, match=f"version {len(schema.MIGRATIONS) + 1}"):
        made.subscription()
    with pytest.raises(Refused, match="knows up to"):
        made.install()


def test_a_half_made_subscription_is_told_apart(state: State) -> None:
    state.install()
    assert not state.create_subscription(ID, "shop_1f2e3d4c", "shop", "7400", 1).complete
    with pytest.raises(RunnelError, match="half made"):
        state.known()


def test_what_is_noted_once_stays(made: State) -> None:
    again = made.create_subscription(uuid.uuid4(), "shop_x", "shop", "7499", 9)
    assert (again.id, again.slot, again.lineage.system_id) == (ID, "shop_1f2e3d4c", "7400")


def test_a_pipeline_begins_where_it_is_registered_and_only_once(made: State) -> None:
    assert made.pipelines()["copy"].position == Position(Lineage("7400", 1, "shop_1f2e3d4c"), 0, Lsn(100))
    assert made.register("late", Lsn(500))
    assert not made.register("late", Lsn(900))
    assert made.pipelines()["late"].position.lsn == 500


def test_a_second_capture_is_refused_and_told_who_the_first_is(made: State, other: State) -> None:
    assert other.claim_capture() == 1
    with pytest.raises(Refused, match=r"'the other' from 127\.0\.0\.1") as caught:
        made.claim_capture(wait=0.2)
    assert str(other.connection.info.backend_pid) in caught.value.message


def test_when_the_first_owner_is_gone_the_second_takes_over_and_the_first_can_not_store(
    made: State, other: State, connect: Connect
) -> None:
    first = made.claim_pipeline("copy")
    made.store_position("copy", first.at(Lsn(200)), 7)
    connect().execute("SELECT pg_terminate_backend(%s)", [made.connection.info.backend_pid])
    second = other.claim_pipeline("copy")
    assert (second.epoch, second.lsn) == (first.epoch + 1, 200)
    with pytest.raises(psycopg.OperationalError):
        made.store_position("copy", first.at(Lsn(300)), 1)
    other.store_position("copy", second.at(Lsn(250)), 3)
    with pytest.raises(Refused, match="taken over by another owner"):
        other.store_position("copy", first.at(Lsn(300)), 1)
    row = other.pipelines()["copy"]
    assert (row.position.lsn, row.changes) == (250, 10)


def test_an_owner_killed_without_a_word_is_followed_within_seconds(made: State, url: str) -> None:
    script = (
        "import signal, sys; from runnel.progress.state import State;"
        "s = State.connect(sys.argv[1], 'shop'); s.claim_capture();"
        "print('claimed', flush=True); signal.pause()"
    )
    child = subprocess.Popen([sys.executable, "-c", script, url], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline().strip() == "claimed"
    child.kill()
    child.wait()
    child.stdout.close()
    assert made.claim_capture() == 2


def test_a_dead_connection_of_our_own_is_not_waited_for(
    made: State, url: str, database: Database, make_proxy: Callable[[Server], Proxy]
) -> None:
    proxy = make_proxy(database.server)
    through = State.connect(database.server.url(database.name, port=proxy.port), "shop")
    through.claim_capture()
    proxy.stall()  # the server never hears that the connection is lost
    through.close()
    assert made.owner("capture") is not None
    assert made.claim_capture(wait=1) == 2


def test_a_living_owner_in_the_same_process_is_no_ghost(made: State, url: str) -> None:
    with State.connect(url, "shop") as second:
        made.claim_pipeline("copy")
        with pytest.raises(Refused, match="is running already"):
            second.claim_pipeline("copy", wait=0.2)
    made.store_position("copy", made.pipelines()["copy"].position)


def test_the_next_child_of_a_supervisor_follows_one_the_server_has_not_missed_yet(
    url: str, made: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OWNER_VARIABLE, "runnel 1@host abc")
    script = (
        "import sys; from runnel.progress.state import State;"
        "s = State.connect(sys.argv[1], 'shop'); s.claim_capture(); print('claimed', flush=True);"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, url], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline().strip() == "claimed"
        with pytest.raises(Refused, match="'runnel 1@host abc'"):
            made.claim_capture(wait=0)
        with State.connect(url, "shop") as second:
            assert second.claim_capture(wait=1) == 2
        child.kill()


def test_claiming_again_under_the_same_connection_gives_the_next_epoch(made: State) -> None:
    assert made.claim_pipeline("copy").epoch == 1
    assert made.claim_pipeline("copy").epoch == 2
    made.release("copy")
    assert made.owner("copy") is None


def test_an_unknown_pipeline_can_not_be_claimed_and_leaves_no_lock(made: State) -> None:
    with pytest.raises(RunnelError, match="'nope' is not known"):
        made.claim_pipeline("nope")
    assert made.owner("nope") is None


def test_subscriptions_in_one_database_do_not_see_each_other(made: State, url: str) -> None:
    with State.connect(url, "second") as second:
        second.create_subscription(uuid.uuid4(), "second_1", "second", "7400", 1)
        second.complete_subscription(Lsn(5), ["copy"])
        assert made.claim_capture() == 1
        assert second.claim_capture() == 1
        assert second.pipelines()["copy"].position.lsn == 5
        assert not second.uninstall()
    assert made.pipelines()["copy"].position.lsn == 100
    assert made.uninstall()
    assert made.subscription() is None


def test_a_state_is_written_only_when_it_changes(made: State, other: State) -> None:
    def writes() -> object:
        query = "SELECT xmin::text FROM runnel.progress WHERE pipeline = 'copy'"
        return other.connection.execute(query).fetchone()

    made.claim_pipeline("copy")
    made.set_state("copy", "live")
    before = writes()
    made.set_state("copy", "live")
    other.set_state("copy", "live")
    assert writes() == before
    made.set_state("copy", "waiting", detail={"why": "a lock"})
    assert writes() != before
    row = other.pipelines()["copy"]
    assert (row.state, row.detail) == ("waiting", {"why": "a lock"})


def test_a_displaced_owner_does_not_overwrite_the_state(made: State, other: State) -> None:
    made.claim_pipeline("copy")
    made.release("copy")
    made._epochs["copy"] = 1  # it does not know yet
    other.claim_pipeline("copy")
    other.set_state("copy", "live")
    made.set_state("copy", "failed", error="boom")
    assert other.pipelines()["copy"].state == "live"


def test_a_running_pipeline_is_neither_removed_nor_moved(made: State, other: State) -> None:
    other.claim_pipeline("copy")
    with pytest.raises(Refused, match="is running"):
        made.remove("copy")
    with pytest.raises(Refused, match="is running"):
        made.reposition("copy", Lsn(1))
    other.release("copy")
    made.reposition("copy", Lsn(50))
    assert made.pipelines()["copy"].position.lsn == 50
    made.remove("copy")
    assert list(made.pipelines()) == ["events"]
    assert made.owner("copy") is None


def test_a_pipeline_registered_anew_has_a_later_epoch_than_any_that_was_removed(made: State) -> None:
    for _ in range(3):
        last = made.claim_pipeline("copy").epoch
    made.release("copy")
    made.remove("copy")
    made.register("copy", Lsn(700))
    made.register("heir of its target", Lsn(700))
    assert made.claim_pipeline("copy").epoch > last
    assert made.claim_pipeline("heir of its target").epoch > last


def test_a_pipeline_is_fresh_until_its_owner_has_opened_the_target(made: State, other: State) -> None:
    made.claim_pipeline("copy")
    assert made.is_fresh("copy")
    other.begun("copy")  # not the owner
    assert made.is_fresh("copy")
    made.begun("copy")
    assert not made.is_fresh("copy")
    made.release("copy")
    made.remove("copy")
    made.register("copy", Lsn(700))
    assert made.is_fresh("copy")


def test_its_own_owner_may_move_a_pipeline_and_store_on(made: State) -> None:
    made.claim_pipeline("copy")
    made.reposition("copy", Lsn(50))
    position = made.pipelines()["copy"].position
    made.store_position("copy", position.at(Lsn(60)))
    assert made.pipelines()["copy"].position.lsn == 60
    assert made.owner("copy") is not None


def test_a_position_of_a_pipeline_removed_meanwhile_is_refused(made: State) -> None:
    position = made.claim_pipeline("copy")
    made.remove("copy")
    with pytest.raises(Refused, match="removed while it ran"):
        made.store_position("copy", position)


def test_pause_and_resume_are_remembered(made: State) -> None:
    made.pause("copy")
    assert made.pipelines()["copy"].paused
    made.resume("copy")
    assert not made.pipelines()["copy"].paused
    with pytest.raises(RunnelError, match="known: copy, events"):
        made.pause("nope")


def test_tables_not_yet_live_travel_with_the_position(made: State) -> None:
    position = made.claim_pipeline("copy")
    tables = {"public.t": {"snapshot": "x", "lsn": "0/1"}}
    made.store_position("copy", Position(position.lineage, position.epoch, Lsn(900), tables))
    assert made.pipelines()["copy"].position.tables == tables


def test_after_a_change_of_lineage_old_positions_are_still_ours(made: State) -> None:
    old = made.known().lineage
    made.change_lineage(Lineage("7400", 2, old.slot))
    made.change_lineage(Lineage("7499", 2, old.slot), base=Lsn(5000))
    now = made.known()
    assert (now.lineage.system_id, now.lineage.timeline, now.consistent_lsn) == ("7499", 2, 5000)
    assert now.owns(old)
    assert now.owns(now.lineage)
    claimed = made.claim_pipeline("copy")
    assert (claimed.lineage, claimed.lsn) == (now.lineage, 100)
    assert claimed.owns(old)
    made.store_position("copy", claimed.at(Lsn(6000)))
    assert made.pipelines()["copy"].position.lineage == now.lineage
    assert not now.owns(Lineage("7498", 1, old.slot))
    assert not now.owns(Lineage("7499", 1, "shop_00000000"))


def test_what_is_quiet_is_written_down_only_by_the_owner_of_capture(made: State, other: State) -> None:
    made.record_quiet(Lsn(1), Lsn(2))
    assert made.known().quiet is None
    other.claim_capture()
    other.record_quiet(Lsn(100), Lsn(200))
    assert made.known().quiet == (100, 200)


def test_letters_are_stored_once_and_come_in_the_order_of_their_key(made: State) -> None:
    rejects = [reject(30, '{"id":1}'), reject(10, '{"id":2}'), reject(20, '{"id":1}', seq=4)]
    made.store_letters("copy", rejects)
    made.store_letters("copy", rejects)
    assert [(x.key, x.lsn, x.seq) for x in made.letters("copy")] == [
        ('{"id":1}', 20, 4),
        ('{"id":1}', 30, 0),
        ('{"id":2}', 10, 0),
    ]
    assert [x.lsn for x in made.letters("copy", by_key=False)] == [10, 20, 30]
    assert made.letters("events") == []
    assert made.letter_counts() == {"copy": 3}


def test_letters_of_what_a_position_has_not_passed_are_told_with_the_key_they_leave(made: State) -> None:
    keys = {9: None, 0x10: None, 0x100: '{"id":1}'}
    made.store_letters("copy", [reject(lsn, '{"id":5}', old_key=old) for lsn, old in keys.items()])
    assert made.letters_behind("copy", Lsn(0x10)) == [(0x10, 0, None), (0x100, 0, '{"id":1}')]
    assert made.letters_behind("events", Lsn(0)) == []


def test_the_clock_is_the_servers(made: State, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert made.clock() == pytest.approx(now, abs=60)


def test_a_key_is_parked_until_its_letters_are_dropped(made: State) -> None:
    made.store_letters("copy", [reject(10, '{"id":1}'), reject(20, '{"id":2}')])
    assert made.parked("copy") == [("public.t", f'{{"id":{n}}}') for n in (1, 2)]
    assert made.drop_letters("copy", key='{"id":1}') == 1
    assert made.parked("copy") == [("public.t", '{"id":2}')]
    assert made.drop_letters("copy", at=[(Lsn(20), 0)]) == 1
    assert made.parked("copy") == []


def test_a_key_is_parked_while_a_letter_moves_its_row_away_from_it(made: State) -> None:
    made.store_letters("copy", [reject(10, '{"id":1}'), reject(20, '{"id":5}')])
    # the sink that rejected it did not tell the old key; then somebody stores it who does not know it
    made.store_letters("copy", [reject(20, '{"id":5}', old_key='{"id":1}')])
    made.store_letters("copy", [reject(20, '{"id":5}')])
    made.drop_letters("copy", at=[(Lsn(10), 0)])
    assert made.parked("copy") == [("public.t", '{"id":1}'), ("public.t", '{"id":5}')]
    made.drop_letters("copy", at=[(Lsn(20), 0)])
    assert made.parked("copy") == []


def test_a_table_without_a_key_is_parked_as_a_whole(made: State) -> None:
    made.store_letters("copy", [reject(10, None), reject(20, None)])
    assert made.parked("copy") == [("public.t", None)]
    assert made.drop_letters("copy", at=[(Lsn(10), 0)]) == 1
    assert made.parked("copy") == [("public.t", None)]
    assert made.drop_letters("copy", table="public.t") == 1
    assert made.parked("copy") == []


def test_letters_past_the_bound_are_an_error_and_none_of_them_is_stored(made: State) -> None:
    made.store_letters("copy", [reject(lsn, None) for lsn in (10, 20)], most=3)
    for lsns in ((30, 40), (20, 30, 40)):
        with pytest.raises(RunnelError) as caught:
            made.store_letters("copy", [reject(lsn, None) for lsn in lsns], most=3)
        assert caught.value.kind is Kind.DATA
        assert "4 dead letters, more than max_dead_letters (3): 4 of public.t" in caught.value.message
        assert "parked as a whole" in caught.value.message
        assert "runnel dead-letters replay copy" in caught.value.hint
        assert made.letter_counts() == {"copy": 2}
    made.store_letters("copy", [reject(lsn, None) for lsn in (10, 20, 30)], most=3)
    made.drop_letters("copy", at=[(Lsn(10), 0)])
    made.store_letters("copy", [reject(40, None)], most=3)


def test_a_key_longer_than_an_index_entry_is_parked(made: State) -> None:
    key = '{"id":"' + "x" * 100_000 + '"}'
    made.store_letters("copy", [reject(1, key)])
    assert made.parked("copy") == [("public.t", key)]


def test_threads_may_share_a_state(made: State) -> None:
    positions = {name: made.claim_pipeline(name) for name in ("copy", "events")}

    def work(name: str) -> None:
        for lsn in range(101, 151):
            made.store_position(name, positions[name].at(Lsn(lsn)), 1)
            made.store_letters(name, [reject(lsn, '{"id":1}')])

    threads = [threading.Thread(target=work, args=[name]) for name in positions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(r.position.lsn, r.changes) for r in made.pipelines().values()] == [(150, 50), (150, 50)]


def test_settings_of_the_role_do_not_end_or_change_our_session(url: str, connect: Connect) -> None:
    database = url.rpartition("/")[2]
    for setting in ("statement_timeout = 2000", "datestyle = 'German'", "synchronous_commit = off"):
        connect().execute(f'ALTER DATABASE "{database}" SET {setting}')
    with State.connect(url, "shop") as found:
        found.install()
        for name, value in (
            ("statement_timeout", "0"),
            ("synchronous_commit", "on"),
            ("search_path", '""'),
        ):
            row = found.connection.execute("SELECT current_setting(%s)", [name]).fetchone()
            assert row == (value if name != "search_path" else "",)


def test_a_wrong_password_is_not_shown(server: Server) -> None:
    bad = f"postgresql://nobody_here:s3cr3t-word@{server.host}:{server.port}/nowhere"
    with pytest.raises(RunnelError) as caught:
        open_connection(bad, "test")
    assert "s3cr3t" not in caught.value.message + caught.value.hint
    with pytest.raises(RunnelError) as caught:
        open_connection("postgresql://u:s3cr3t-word@h:1/d?nonsense=s3cr3t-word", "test")
    assert "s3cr3t" not in caught.value.message + caught.value.hint
