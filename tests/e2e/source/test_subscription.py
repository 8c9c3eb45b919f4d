from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from uuid import uuid4

import psycopg
import pytest

from runnel.capture import membership
from runnel.capture.removal import destroy
from runnel.capture.slot import read_slot
from runnel.capture.stream import ReplicationStream
from runnel.capture.subscription import Outcome, Wanted, init
from runnel.demo.server import Server
from runnel.errors import Refused, RunnelError
from runnel.postgres import catalog
from runnel.postgres.connect import connect as open_connection
from runnel.postgres.lsn import Lsn
from runnel.postgres.patterns import TablePatterns
from runnel.progress import schema
from runnel.progress.state import State
from servers import Database

Connect = Callable[[], psycopg.Connection]


def quiet(_: str) -> None: ...


def make(url: str, state: State, *tables: str, pipelines: tuple[str, ...] = ("copy",)) -> Outcome:
    return init(url, state, Wanted("shop", tables or ("*.*",), pipelines), quiet)


def published(connection: psycopg.Connection) -> list[str]:
    rows = connection.execute(
        "SELECT tablename FROM pg_publication_tables WHERE pubname = 'shop' ORDER BY tablename"
    )
    return [name for (name,) in rows]


def leftovers(connection: psycopg.Connection) -> list[object]:
    query = (
        "SELECT 'slot ' || slot_name FROM pg_replication_slots WHERE database = current_database()"
        " UNION ALL SELECT 'publication ' || pubname FROM pg_publication"
        " UNION ALL SELECT 'schema ' || nspname FROM pg_namespace WHERE nspname = 'runnel'"
    )
    return [row[0] for row in connection.execute(query)]


ZOO = {
    "plain": ["CREATE TABLE plain (id int PRIMARY KEY, v text)"],
    "no_key": ["CREATE TABLE no_key (id int, v text)"],
    "unique_only": ["CREATE TABLE unique_only (id int NOT NULL UNIQUE, v text)"],
    "nothing": [
        "CREATE TABLE nothing (id int PRIMARY KEY, v text)",
        "ALTER TABLE nothing REPLICA IDENTITY NOTHING",
    ],
    "full": ["CREATE TABLE full_row (id int, v text)", "ALTER TABLE full_row REPLICA IDENTITY FULL"],
    "by_index": [
        "CREATE TABLE by_index (id int NOT NULL, v text)",
        "CREATE UNIQUE INDEX by_index_u ON by_index (id)",
        "ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_u",
    ],
    "index_gone": [
        "CREATE TABLE index_gone (id int NOT NULL, v text)",
        "CREATE UNIQUE INDEX index_gone_u ON index_gone (id)",
        "ALTER TABLE index_gone REPLICA IDENTITY USING INDEX index_gone_u",
        "DROP INDEX index_gone_u",
    ],
    "deferrable": ["CREATE TABLE deferrable_key (id int PRIMARY KEY DEFERRABLE, v text)"],
    "generated_full": [
        "CREATE TABLE generated_full (id int, v text, w text GENERATED ALWAYS AS (v || v) STORED)",
        "ALTER TABLE generated_full REPLICA IDENTITY FULL",
    ],
    "virtual_full": [
        "CREATE TABLE virtual_full (id int, v text, w text GENERATED ALWAYS AS (v || v) VIRTUAL)",
        "ALTER TABLE virtual_full REPLICA IDENTITY FULL",
    ],
    "generated_key": [
        "CREATE TABLE generated_key (id int, v text, w int GENERATED ALWAYS AS (id + 1) STORED PRIMARY KEY)"
    ],
    "leaf_has_key": [
        "CREATE TABLE leaf_has_key (id int, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE leaf_has_key_1 PARTITION OF leaf_has_key FOR VALUES FROM (0) TO (10)",
        "ALTER TABLE leaf_has_key_1 ADD PRIMARY KEY (id)",
    ],
    "leaf_lacks_key": [
        "CREATE TABLE leaf_lacks_key (id int, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE leaf_lacks_key_1 PARTITION OF leaf_lacks_key FOR VALUES FROM (0) TO (10)",
    ],
    "leaf_is_not_full": [
        "CREATE TABLE leaf_is_not_full (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE leaf_is_not_full_1 PARTITION OF leaf_is_not_full FOR VALUES FROM (0) TO (10)",
        "ALTER TABLE leaf_is_not_full REPLICA IDENTITY FULL",
    ],
    "two_levels": [
        "CREATE TABLE two_levels (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE two_levels_1 PARTITION OF two_levels FOR VALUES FROM (0) TO (10)"
        " PARTITION BY RANGE (id)",
        "CREATE TABLE two_levels_1_1 PARTITION OF two_levels_1 FOR VALUES FROM (0) TO (10)",
    ],
    "odd name": ['CREATE TABLE "odd "" name.%s{}" (id int PRIMARY KEY, v text)'],
}

MISTOLD = {"leaf_has_key", "leaf_is_not_full"}
"""Postgres takes their updates, but what it would send of old rows is not true: see test_identities.py."""


@pytest.mark.parametrize("kind", ZOO)
def test_a_table_is_enrolled_exactly_if_its_updates_go_on_working(
    kind: str, url: str, state: State, connect: Connect
) -> None:
    user = connect()
    version = user.info.server_version
    if kind == "virtual_full" and version < 180_000:
        pytest.skip("virtual columns came with PostgreSQL 18")
    for statement in ZOO[kind]:
        user.execute(statement.encode())
    with open_connection(url, "test") as source:
        table = next(t for t in catalog.tables(source) if t.parent is None)
    make(url, state)
    user.execute(f"INSERT INTO {table.sql} (id, v) VALUES (1, 'a')".encode())
    user.execute(f"UPDATE {table.sql} SET v = 'b'".encode())  # works either way: that is the point
    user.execute(f"DELETE FROM {table.sql}".encode())
    if table.unusable:
        assert published(user) == []
        options = "publish_via_partition_root = true"
        options += ", publish_generated_columns = stored" if version >= 180_000 else ""
        user.execute(f"CREATE PUBLICATION probe FOR TABLE {table.sql} WITH ({options})".encode())
        user.execute(f"INSERT INTO {table.sql} (id, v) VALUES (1, 'a')".encode())
        if kind not in MISTOLD:
            with pytest.raises(
                (psycopg.errors.ObjectNotInPrerequisiteState, psycopg.errors.InvalidColumnReference)
            ):
                user.execute(f"UPDATE {table.sql} SET v = 'b'".encode())
        if table.remedy:
            user.execute(table.remedy.encode())
            user.execute(f"UPDATE {table.sql} SET v = 'b'".encode())
            user.execute("DROP PUBLICATION probe")
            assert make(url, state).membership.added == [table.label]
    else:
        assert published(user) == [table.name]


def test_unlogged_and_foreign_tables_and_runnels_own_are_left_out(
    url: str, state: State, connect: Connect
) -> None:
    user = connect()
    user.execute("CREATE UNLOGGED TABLE fast (id int PRIMARY KEY)")
    user.execute("CREATE FOREIGN DATA WRAPPER somewhere")
    user.execute("CREATE SERVER far FOREIGN DATA WRAPPER somewhere")
    user.execute("CREATE FOREIGN TABLE away (id int) SERVER far")
    user.execute("CREATE TABLE plain (id int PRIMARY KEY)")
    report = make(url, state).membership
    assert published(user) == ["plain"]
    reasons = {t.label: t.reason for t in report.problems()}
    assert "unlogged" in str(reasons["public.fast"])
    assert "foreign" in str(reasons["public.away"])
    assert not any(t.label.startswith("runnel.") for t in report.tables)


def test_a_new_subscription_begins_at_the_slots_consistent_point(
    url: str, state: State, connect: Connect
) -> None:
    outcome = make(url, state, pipelines=("a", "b"))
    subscription = outcome.subscription
    assert subscription.slot == f"shop_{subscription.id.hex[:8]}"
    with open_connection(url, "test") as source:
        slot = read_slot(source, subscription.slot)
    assert slot is not None
    assert slot.confirmed == subscription.consistent_lsn
    assert {row.position.lsn for row in state.pipelines().values()} == {slot.confirmed}
    assert connect().execute("SELECT pubviaroot, obj_description(oid) FROM pg_publication").fetchone() == (
        True,
        f"runnel subscription {subscription.id}",
    )


def test_the_slot_is_a_failover_slot_where_the_server_has_them(url: str, state: State) -> None:
    outcome = init(url, state, Wanted("shop", ("*.*",), ("copy",), failover=True), quiet)
    with open_connection(url, "test") as source:
        slot = read_slot(source, outcome.subscription.slot)
        able = source.info.server_version >= 170_000
    assert slot is not None
    assert slot.failover is able
    assert [note for note in outcome.notes if "PostgreSQL 17" in note] == ([] if able else outcome.notes)
    assert able or outcome.notes


def test_a_pipeline_that_comes_later_begins_at_the_sources_lsn_of_that_moment(
    url: str, state: State, connect: Connect
) -> None:
    user = connect()
    user.execute("CREATE TABLE t (id int PRIMARY KEY)")
    first = make(url, state)
    user.execute("INSERT INTO t VALUES (1)")
    before = Lsn.parse(user.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()[0])  # type: ignore[index]
    again = make(url, state, pipelines=("copy", "late"))
    after = Lsn.parse(user.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()[0])  # type: ignore[index]
    assert not again.created
    assert list(again.registered) == ["late"]
    rows = state.pipelines()
    assert rows["copy"].position.lsn == first.subscription.consistent_lsn
    assert before <= rows["late"].position.lsn <= after


def test_what_capture_confirms_while_a_pipeline_joins_lies_before_its_position(
    url: str, state: State, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = connect()
    user.execute("CREATE TABLE t (id int PRIMARY KEY)")
    make(url, state)
    register, reached = State.register, []

    def late(self: State, pipeline: str, lsn: Lsn, *, state: str) -> bool:
        # between the look at the source and the row: captured, delivered by all others and confirmed
        user.execute("INSERT INTO t VALUES (1)")
        reached.append(user.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()[0])  # type: ignore[index]
        return register(self, pipeline, lsn, state=state)

    monkeypatch.setattr(State, "register", late)
    outcome = make(url, state, pipelines=("copy", "late"))
    assert state.pipelines()["late"].position.lsn == outcome.registered["late"]
    assert outcome.registered["late"] >= Lsn.parse(reached[0])
    assert make(url, state, pipelines=("copy", "late")).registered == {}


def test_tables_join_and_leave(url: str, state: State, connect: Connect) -> None:
    user = connect()
    user.execute("CREATE TABLE a (id int PRIMARY KEY)")
    user.execute("CREATE TABLE b (id int PRIMARY KEY)")
    make(url, state, "public.a")
    assert published(user) == ["a"]
    user.execute("CREATE TABLE c (id int PRIMARY KEY)")
    report = make(url, state, "public.*", "!public.a").membership
    assert (report.added, report.dropped) == (["public.b", "public.c"], ["public.a"])
    assert published(user) == ["b", "c"]
    assert not make(url, state, "public.*", "!public.a").membership.changed


def test_a_published_table_that_loses_its_key_stays_with_a_reason(
    url: str, state: State, connect: Connect
) -> None:
    user = connect()
    user.execute("CREATE TABLE t (id int PRIMARY KEY)")
    make(url, state)
    user.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
    report = make(url, state).membership
    assert published(user) == ["t"]
    assert [(t.published, t.remedy) for t in report.problems()] == [
        (True, "ALTER TABLE public.t REPLICA IDENTITY FULL")
    ]


def test_a_leaf_goes_with_its_root_and_alone_only_if_the_root_is_not_wanted(
    url: str, state: State, connect: Connect
) -> None:
    user = connect()
    for statement in ZOO["two_levels"]:
        user.execute(statement.encode())
    make(url, state)
    assert published(user) == ["two_levels"]
    make(url, state, "public.two_levels_1_1")
    assert published(user) == ["two_levels_1_1"]


def test_a_literal_name_that_cannot_be_published_is_an_error_and_nothing_is_made(
    url: str, state: State, connect: Connect
) -> None:
    user = connect()
    user.execute("CREATE TABLE no_key (id int)")
    with pytest.raises(
        RunnelError, match=r"public\.gone does not exist; public\.no_key: no primary key"
    ) as caught:
        make(url, state, "public.no_key", "public.gone")
    assert "ALTER TABLE public.no_key REPLICA IDENTITY FULL" in caught.value.hint
    assert leftovers(user) == []


def test_a_root_whose_leaves_have_another_identity_is_told_the_sql_for_each_of_them(
    url: str, state: State, connect: Connect
) -> None:
    user = connect()
    for statement in ZOO["leaf_is_not_full"]:
        user.execute(statement.encode())
    user.execute("CREATE TABLE leaf_is_not_full_2 PARTITION OF leaf_is_not_full DEFAULT")
    with pytest.raises(
        RunnelError, match=r"public\.leaf_is_not_full_1 and 1 more: replica identity"
    ) as caught:
        make(url, state, "public.leaf_is_not_full")
    for statement in caught.value.hint.split("; "):
        user.execute(statement.encode())
    assert make(url, state, "public.leaf_is_not_full").membership.added == ["public.leaf_is_not_full"]
    user.execute(
        "CREATE TABLE leaf_is_not_full_3 PARTITION OF leaf_is_not_full FOR VALUES FROM (20) TO (30)"
    )
    [problem] = make(url, state).membership.problems()
    assert (problem.published, problem.remedy) == (
        True,
        "ALTER TABLE public.leaf_is_not_full_3 REPLICA IDENTITY FULL",
    )


def test_a_locked_table_waits_for_the_next_time_and_the_others_join(
    url: str, state: State, connect: Connect
) -> None:
    user = connect()
    make(url, state)
    user.execute("CREATE TABLE a (id int PRIMARY KEY)")
    user.execute("CREATE TABLE b (id int PRIMARY KEY)")
    patterns = TablePatterns(["*.*"])
    with open_connection(url, "test") as source:
        with user.transaction():
            user.execute("LOCK TABLE a IN ACCESS EXCLUSIVE MODE")
            report = membership.reconcile(source, "shop", patterns, lock_timeout="100ms")
        assert report.added == ["public.b"]
        assert [t.label for t in report.problems()] == ["public.a"]
        assert membership.reconcile(source, "shop", patterns).added == ["public.a"]


def test_init_says_for_which_transaction_it_waits(url: str, state: State, connect: Connect) -> None:
    busy = connect()
    busy.execute("CREATE TABLE t (id int PRIMARY KEY)")
    busy.execute("BEGIN")
    busy.execute("INSERT INTO t VALUES (1)")
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if "waiting" in text and busy.info.transaction_status:
            busy.execute("COMMIT")

    init(url, state, Wanted("shop", ("*.*",), ("copy",)), say)
    waiting = next(text for text in said if "waiting" in text)
    assert str(busy.info.backend_pid) in waiting
    assert "INSERT INTO t" in waiting


def test_a_prepared_transaction_is_named_too(url: str, state: State, connect: Connect) -> None:
    busy = connect()
    busy.execute("CREATE TABLE t (id int PRIMARY KEY)")
    busy.execute("BEGIN")
    busy.execute("INSERT INTO t VALUES (1)")
    busy.execute("PREPARE TRANSACTION 'forgotten'")
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if "forgotten" in text:
            busy.execute("COMMIT PREPARED 'forgotten'")

    init(url, state, Wanted("shop", ("*.*",), ("copy",)), say)
    assert any("'forgotten'" in text for text in said)


def test_a_table_that_joins_later_waits_for_transactions_that_wrote_before(
    url: str, state: State, connect: Connect
) -> None:
    busy, user = connect(), connect()
    make(url, state)
    user.execute("CREATE TABLE t (id int PRIMARY KEY)")
    busy.execute("BEGIN")
    busy.execute("INSERT INTO t VALUES (1)")
    ended: list[bool] = []

    def say(text: str) -> None:
        if "waiting" in text and not ended:
            ended.append(True)
            busy.execute("COMMIT")

    outcome = init(url, state, Wanted("shop", ("*.*",), ("copy", "late")), say)
    assert ended
    assert outcome.membership.added == ["public.t"]


@pytest.mark.parametrize("step", ["init.noted", "init.published", "init.slot"])
def test_a_kill_between_two_steps_is_repaired_by_the_next_init(
    step: str, url: str, state: State, connect: Connect
) -> None:
    user = connect()
    user.execute("CREATE TABLE t (id int PRIMARY KEY)")
    script = (
        "import sys; from runnel.capture.subscription import *;"
        "s = State.connect(sys.argv[1], 'shop');"
        "init(sys.argv[1], s, Wanted('shop', ('*.*',), ('copy',)), lambda text: None)"
    )
    environment = {**os.environ, "RUNNEL_FAILPOINTS": f"{step}=kill"}
    done = subprocess.run([sys.executable, "-c", script, url], env=environment, check=False)
    assert done.returncode == -9
    noted = state.subscription()
    assert noted is not None
    assert not noted.complete
    outcome = make(url, state)
    assert outcome.subscription.id == noted.id
    assert outcome.subscription.complete
    assert published(user) == ["t"]
    assert state.pipelines()["copy"].position.lsn == outcome.subscription.consistent_lsn
    destroy(url, state, "shop", quiet)
    assert leftovers(user) == []


def test_a_table_that_joins_after_an_interrupted_init_waits_for_transactions_too(
    url: str, state: State, connect: Connect
) -> None:
    script = (
        "import sys; from runnel.capture.subscription import *;"
        "s = State.connect(sys.argv[1], 'shop');"
        "init(sys.argv[1], s, Wanted('shop', ('*.*',), ('copy',)), lambda text: None)"
    )
    environment = {**os.environ, "RUNNEL_FAILPOINTS": "init.slot=kill"}
    done = subprocess.run([sys.executable, "-c", script, url], env=environment, check=False)
    assert done.returncode == -9
    busy, user = connect(), connect()
    user.execute("CREATE TABLE t (id int PRIMARY KEY)")
    busy.execute("BEGIN")
    busy.execute("INSERT INTO t VALUES (1)")
    ended: list[bool] = []

    def say(text: str) -> None:
        if "waiting" in text and not ended:
            ended.append(True)
            busy.execute("COMMIT")

    outcome = init(url, state, Wanted("shop", ("*.*",), ("copy",)), say)
    assert outcome.membership.added == ["public.t"]
    assert ended, "what the open transaction wrote before the table joined would be missing"


def test_a_kill_while_the_server_makes_the_slot_is_repaired(
    url: str, state: State, connect: Connect
) -> None:
    busy, user = connect(), connect()
    user.execute("CREATE TABLE t (id int PRIMARY KEY)")
    busy.execute("BEGIN")
    busy.execute("INSERT INTO t VALUES (1)")
    script = (
        "import sys; from runnel.capture.subscription import *;"
        "s = State.connect(sys.argv[1], 'shop');"
        "init(sys.argv[1], s, Wanted('shop', ('*.*',), ('copy',)), lambda text: print(text, flush=True))"
    )
    child = subprocess.Popen([sys.executable, "-c", script, url], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert any("waiting" in line for line in iter(child.stdout.readline, ""))
    child.kill()
    child.wait()
    child.stdout.close()
    threading.Timer(1, lambda: busy.execute("COMMIT")).start()
    outcome = make(url, state)
    assert outcome.subscription.complete
    slots = user.execute(
        "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    ).fetchall()
    assert slots == [(outcome.subscription.slot,)]


def test_two_inits_at_once_make_one_subscription(url: str, connect: Connect) -> None:
    outcomes: list[Outcome] = []

    def work() -> None:
        with State.connect(url, "shop") as state:
            outcomes.append(make(url, state))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({outcome.subscription.id for outcome in outcomes}) == 1
    assert sum(outcome.created for outcome in outcomes) == 1


def test_a_publication_that_is_not_runnels_is_never_touched(
    url: str, state: State, connect: Connect
) -> None:
    user = connect()
    user.execute("CREATE PUBLICATION shop")
    with pytest.raises(Refused, match="is not Runnel's"):
        make(url, state)
    destroy(url, state, "shop", quiet)
    assert leftovers(user) == ["publication shop"]


def test_a_dropped_slot_is_refused(url: str, state: State, connect: Connect) -> None:
    slot = make(url, state).subscription.slot
    connect().execute("SELECT pg_drop_replication_slot(%s)", [slot])
    with pytest.raises(Refused, match="does not exist any more") as caught:
        make(url, state)
    assert "runnel destroy" in caught.value.hint


def test_a_recreated_publication_is_refused(url: str, state: State, connect: Connect) -> None:
    make(url, state)
    user = connect()
    user.execute("DROP PUBLICATION shop")
    with pytest.raises(Refused, match="does not exist any more"):
        make(url, state)
    user.execute("CREATE PUBLICATION shop FOR ALL TABLES")
    with pytest.raises(Refused, match="made anew"):
        make(url, state)


def test_an_altered_publication_is_set_right_and_said(url: str, state: State, connect: Connect) -> None:
    make(url, state)
    user = connect()
    user.execute("ALTER PUBLICATION shop SET (publish = 'insert', publish_via_partition_root = false)")
    with pytest.raises(Refused, match="does not publish update") as caught:  # the implied init of `run`
        init(url, state, Wanted("shop", mend=False), quiet)
    assert "runnel init sets it right" in caught.value.hint
    assert "set right again" in make(url, state).notes[0]
    row = user.execute("SELECT pubdelete AND pubviaroot FROM pg_publication").fetchone()
    assert row == (True,)


def test_when_only_runnels_rows_are_lost_slot_and_publication_are_adopted(
    url: str, state: State, connect: Connect
) -> None:
    before = make(url, state).subscription
    connect().execute("DROP SCHEMA runnel CASCADE")
    outcome = make(url, state)
    assert (outcome.subscription.id, outcome.subscription.slot) == (before.id, before.slot)
    assert state.pipelines()["copy"].position.lsn == before.consistent_lsn
    assert "adopted" in outcome.notes[0]


def test_a_slot_that_another_installation_reads_is_not_adopted(
    url: str, state: State, server: Server
) -> None:
    living = make(url, state).subscription
    stream = ReplicationStream(url, "test")
    with State.connect(server.url(), "shop") as apart:
        try:
            stream.start(living.slot, "shop", living.consistent_lsn, streaming=True)
            with pytest.raises(Refused, match=f"{living.slot}.*is in use") as caught:
                make(url, apart)
            assert "source.name" in caught.value.hint
            assert apart.subscription() is None
        finally:
            stream.close()
            apart.uninstall()


def test_a_publication_of_another_subscription_is_not_taken_from_it(
    url: str, state: State, server: Server, connect: Connect
) -> None:
    living = make(url, state).subscription
    with State.connect(server.url(), "shop") as apart:
        try:
            apart.install()  # as an init leaves it that was killed before the other one began
            other, lineage = uuid4(), living.lineage
            apart.create_subscription(
                other, f"shop_{other.hex[:8]}", "shop", lineage.system_id, lineage.timeline
            )
            with pytest.raises(Refused, match=f"belongs to subscription {living.id}"):
                make(url, apart)
        finally:
            apart.uninstall()
    assert connect().execute("SELECT obj_description(oid) FROM pg_publication").fetchone() == (
        f"runnel subscription {living.id}",
    )


def test_a_publication_left_without_slot_and_rows_gets_a_new_uuid(
    url: str, state: State, connect: Connect
) -> None:
    before = make(url, state).subscription
    user = connect()
    user.execute("DROP SCHEMA runnel CASCADE")
    user.execute("SELECT pg_drop_replication_slot(%s)", [before.slot])
    outcome = make(url, state)
    assert outcome.subscription.id != before.id
    destroy(url, state, "shop", quiet)
    assert leftovers(user) == []


def test_another_server_is_refused_until_it_is_accepted(url: str, state: State) -> None:
    make(url, state)
    state.connection.execute("UPDATE runnel.subscription SET system_id = '7400'")
    state.connection.execute("UPDATE runnel.progress SET system_id = '7400'")
    with pytest.raises(Refused, match="another server"):
        make(url, state)
    outcome = init(url, state, Wanted("shop", ("*.*",), ("copy",), accept_server=True), quiet)
    assert outcome.subscription.owns(state.pipelines()["copy"].position.lineage)
    assert outcome.subscription.lineage.system_id != "7400"
    make(url, state)


def test_the_state_may_live_in_another_database(url: str, server: Server, connect: Connect) -> None:
    user = connect()
    user.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with State.connect(server.url(), "shop") as apart:
        make(url, apart)
        assert not any("schema" in str(what) for what in leftovers(user))
        destroy(url, apart, "shop", quiet)
    assert leftovers(user) == []


def test_destroy_is_refused_while_capture_lives_and_may_be_repeated(
    url: str, state: State, connect: Connect
) -> None:
    make(url, state)
    with State.connect(url, "shop") as owner:
        owner.claim_capture()
        with pytest.raises(Refused, match="capture of 'shop' is running"):
            destroy(url, state, "shop", quiet)
    for _ in range(2):
        destroy(url, state, "shop", quiet)
    assert leftovers(connect()) == []


def test_destroy_leaves_a_subscription_that_the_state_does_not_know_unless_forced(
    url: str, state: State, server: Server, connect: Connect
) -> None:
    living = make(url, state).subscription
    with State.connect(server.url(), "shop") as apart:
        with pytest.raises(Refused, match=f"slot '{living.slot}'.*does not know") as caught:
            destroy(url, apart, "shop", quiet)
        assert f"pg_drop_replication_slot('{living.slot}')" in caught.value.hint
        make(url, state)  # nothing is lost
        destroy(url, apart, "shop", quiet, force=True)
    assert leftovers(connect()) == ["schema runnel"]


@pytest.mark.parametrize("force", [False, True])
def test_destroy_removes_what_is_its_own_and_leaves_a_publication_that_another_installation_made(
    force: bool, url: str, state: State, server: Server, connect: Connect
) -> None:
    user = connect()
    ours = make(url, state).subscription
    user.execute("DROP PUBLICATION shop")
    with State.connect(server.url(), "shop") as apart:
        theirs = make(url, apart).subscription
        said: list[str] = []
        destroy(url, state, "shop", said.append, force=force)
        assert f"slot {ours.slot} dropped" in said
        assert f"publication shop is of another subscription, {theirs.id}: left as it is" in said
        assert "schema runnel dropped" in said
        assert make(url, apart).subscription.slot == theirs.slot  # it goes on
        destroy(url, apart, "shop", quiet)
    assert leftovers(user) == []


def test_a_state_of_an_earlier_version_is_said_as_such_and_destroyed_all_the_same(
    url: str, state: State, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = schema.MIGRATIONS
    with monkeypatch.context() as earlier:
        earlier.setattr(schema, "MIGRATIONS", steps[:2])
        state.install()
    state.connection.execute(
        "INSERT INTO runnel.subscription (name, id, slot, publication, system_id, timeline)"
        " VALUES ('shop', gen_random_uuid(), 'shop_00000000', 'shop', '7', 1)"
    )
    with pytest.raises(Refused, match=f"has version 2.*needs {len(steps)}") as caught:
        state.subscription()
    assert "runnel init" in caught.value.hint
    destroy(url, state, "shop", quiet)
    assert leftovers(connect()) == []


def test_what_somebody_else_keeps_in_schema_runnel_stays(url: str, state: State, connect: Connect) -> None:
    make(url, state)
    user = connect()
    user.execute("CREATE TABLE runnel.theirs (id int)")
    destroy(url, state, "shop", quiet)
    assert user.execute("SELECT to_regclass('runnel.theirs') IS NOT NULL").fetchone() == (True,)


def test_a_role_with_the_least_privileges_is_enough(database: Database, connect: Connect) -> None:
    admin = connect()
    role = database.name
    admin.execute(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD '{role}'")
    admin.execute(f'GRANT CREATE ON DATABASE "{role}" TO "{role}"')
    admin.execute("CREATE TABLE theirs (id int PRIMARY KEY)")
    admin.execute("CREATE TABLE ours (id int PRIMARY KEY)")
    admin.execute(f'ALTER TABLE ours OWNER TO "{role}"')
    plain = f"postgresql://{role}:{role}@{database.server.host}:{database.server.port}/{role}"
    with State.connect(plain, "shop") as state:
        report = make(plain, state).membership
        assert published(admin) == ["ours"]
        assert "owned by postgres" in str(report.problems()[0].reason)
        destroy(plain, state, "shop", quiet)
    admin.execute(f'REASSIGN OWNED BY "{role}" TO postgres')
    admin.execute(f'DROP OWNED BY "{role}"')


def test_a_role_that_may_not_replicate_is_told_the_sql(database: Database, connect: Connect) -> None:
    admin = connect()
    role = database.name
    admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{role}'")
    plain = f"postgresql://{role}:{role}@{database.server.host}:{database.server.port}/{role}"
    with State.connect(plain, "shop") as state:
        with pytest.raises(RunnelError) as caught:
            make(plain, state)
        assert f"GRANT CREATE ON DATABASE {role}" in caught.value.hint
        admin.execute(f'GRANT CREATE ON DATABASE "{role}" TO "{role}"')
        with pytest.raises(RunnelError) as caught:
            make(plain, state)
        assert caught.value.hint == f'ALTER ROLE "{role}" REPLICATION'
        destroy(plain, state, "shop", quiet)
    admin.execute(f'DROP OWNED BY "{role}"')
