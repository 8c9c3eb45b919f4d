"""What `init` makes of a publication that somebody else has been at, and when a table that joined counts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import psycopg
import pytest

from conftest import RunnelCli
from runnel.capture import settling
from runnel.capture.stream import ReplicationStream
from runnel.capture.subscription import Outcome, Wanted, init
from runnel.errors import Refused, RunnelError
from runnel.progress import schema
from runnel.progress.state import State
from servers import await_condition

Connect = Callable[[], psycopg.Connection]


def quiet(_: str) -> None: ...


def make(url: str, state: State, *tables: str, **more: bool) -> Outcome:
    return init(url, state, Wanted("shop", tables or ("*.*",), ("copy",), **more), quiet)


ALTERATIONS = {
    "leaves out rows of public.t": (15, "ALTER PUBLICATION shop SET TABLE t WHERE (id > 5)"),
    "leaves out columns of public.t": (15, "ALTER PUBLICATION shop SET TABLE t (id)"),
    "publishes all tables of schema secret": (15, "ALTER PUBLICATION shop ADD TABLES IN SCHEMA secret"),
    "leaves out stored generated columns": (
        18,
        "ALTER PUBLICATION shop SET (publish_generated_columns = none)",
    ),
}


@pytest.mark.parametrize("says", ALTERATIONS)
def test_a_publication_altered_to_publish_something_else_is_refused_until_init_mends_it(
    says: str, url: str, state: State, connect: Connect, runnel_cli: RunnelCli
) -> None:
    runnel_cli.config(f"source: {{url: '{url}', name: shop}}\n")
    user = connect()
    since, alteration = ALTERATIONS[says]
    if user.info.server_version < since * 10_000:
        pytest.skip(f"PostgreSQL {since} brought that")
    user.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    user.execute("CREATE SCHEMA secret")
    make(url, state)
    user.execute(alteration.encode())
    with pytest.raises(Refused, match=says) as caught:  # the implied init of `run`
        make(url, state, mend=False)
    assert "runnel init sets it right" in caught.value.hint
    assert says in _unfolded(runnel_cli.run("check", expect=1).stdout)
    outcome = make(url, state)
    assert [note for note in outcome.notes if says in note] == outcome.notes
    assert len(outcome.notes) == 1
    assert [(t.label, t.published) for t in outcome.membership.tables] == [("public.t", True)]
    assert make(url, state, mend=False).notes == []


def test_a_publication_made_anew_with_the_same_comment_is_refused_and_shown_by_check(
    url: str, state: State, connect: Connect, runnel_cli: RunnelCli
) -> None:
    runnel_cli.config(f"source: {{url: '{url}', name: shop}}\n")
    user = connect()
    user.execute("CREATE TABLE t (id int PRIMARY KEY)")
    comment = f"runnel subscription {make(url, state).subscription.id}"
    user.execute("DROP PUBLICATION shop")
    user.execute("CREATE PUBLICATION shop FOR TABLE t WITH (publish_via_partition_root)")
    user.execute(f"COMMENT ON PUBLICATION shop IS '{comment}'".encode())
    with pytest.raises(Refused, match="made anew"):
        make(url, state)
    assert "publication 'shop' was made anew by somebody else" in _unfolded(
        runnel_cli.run("check", expect=1).stdout
    )
    user.execute("DROP PUBLICATION shop")
    assert "publication 'shop' does not exist any more" in _unfolded(
        runnel_cli.run("check", expect=1).stdout
    )


def test_after_an_upgrade_of_runnel_capture_says_that_the_state_is_of_the_earlier_one(
    url: str, state: State, runnel_cli: RunnelCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    runnel_cli.config(
        f"source: {{url: '{url}', name: shop}}\npipelines:\n  copy: {{sink: {{type: files, path: out}}}}\n"
    )
    with monkeypatch.context() as earlier:
        earlier.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:2])
        state.install()
    said = "schema runnel has version 2, of an earlier Runnel"
    done = runnel_cli.run("capture", expect=1).stderr
    assert said in done
    assert "runnel init" in done
    assert said in _unfolded(runnel_cli.run("check", expect=1).stdout)
    assert "there is no subscription shop" in runnel_cli.run("destroy").stdout


def test_on_an_accepted_server_the_publication_counts_as_it_is_there(
    url: str, state: State, connect: Connect
) -> None:
    connect().execute("CREATE TABLE t (id int PRIMARY KEY)")
    noted = make(url, state).subscription
    state.connection.execute(  # as pg_upgrade leaves it: other oids, but for the tables'
        "UPDATE runnel.subscription SET system_id = '7400', publication_oid = 1,"
        " members = (SELECT jsonb_object_agg(key, 1) FROM jsonb_each(members))"
    )
    state.connection.execute("UPDATE runnel.progress SET system_id = '7400'")
    with pytest.raises(Refused, match="another server"):
        make(url, state)
    outcome = make(url, state, accept_server=True)
    assert len(outcome.notes) == 1
    known = state.known()
    assert (known.publication_oid, known.members) == (noted.publication_oid, noted.members)
    assert make(url, state).notes == []


@pytest.mark.parametrize("again", [True, False])
def test_a_table_that_was_out_of_the_publication_meanwhile_is_named(
    again: bool, url: str, state: State, connect: Connect
) -> None:
    user = connect()
    user.execute("CREATE TABLE kept (id int PRIMARY KEY)")
    user.execute("CREATE TABLE other (id int PRIMARY KEY)")
    make(url, state)
    user.execute("ALTER PUBLICATION shop DROP TABLE kept")
    if again:
        user.execute("ALTER PUBLICATION shop ADD TABLE kept")
    notes = make(url, state).notes
    assert len(notes) == 1
    assert "public.kept was taken out" in notes[0]
    assert "changes of it in between, if any, were not captured" in notes[0]
    assert make(url, state).notes == []


def test_a_table_that_the_configuration_takes_out_and_in_again_is_new_without_a_word(
    url: str, state: State, connect: Connect
) -> None:
    connect().execute("CREATE TABLE t (id int PRIMARY KEY)")
    make(url, state)
    assert make(url, state, "*.*", "!public.t").membership.dropped == ["public.t"]
    assert make(url, state).notes == []


@pytest.mark.parametrize("who", ["an init that was killed", "another process"])
def test_init_waits_for_transactions_of_before_a_table_joined_whoever_published_it(
    who: str, url: str, state: State, connect: Connect
) -> None:
    busy, user = connect(), connect()
    make(url, state)
    user.execute("CREATE TABLE t (id int PRIMARY KEY)")
    busy.execute("BEGIN")
    busy.execute("INSERT INTO t VALUES (1)")
    if who == "another process":
        user.execute("ALTER PUBLICATION shop ADD TABLE t")
    else:
        script = (
            "import sys; from runnel.capture.subscription import *;"
            "s = State.connect(sys.argv[1], 'shop');"
            "init(sys.argv[1], s, Wanted('shop', ('*.*',), ('copy',)), lambda text: print(text, flush=True))"
        )
        child = subprocess.Popen(
            [sys.executable, "-c", script, url],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert child.stdout is not None
        assert any("waiting" in line for line in iter(child.stdout.readline, ""))
        child.kill()
        child.wait()
        child.stdout.close()
    ended: list[bool] = []

    def say(text: str) -> None:
        if "waiting" in text and not ended:
            ended.append(True)
            busy.execute("COMMIT")

    outcome = init(url, state, Wanted("shop", ("*.*",), ("copy",)), say)
    assert outcome.membership.added == []
    assert ended, "what the open transaction wrote before the table joined is missing"


@pytest.mark.parametrize("prepared", [False, True])
def test_the_implied_init_waits_for_nobody_and_leaves_the_table_to_capture(
    prepared: bool, url: str, state: State, connect: Connect
) -> None:
    busy, user = connect(), connect()
    make(url, state)
    user.execute("CREATE TABLE t (id int PRIMARY KEY)")
    busy.execute("BEGIN")
    busy.execute("INSERT INTO t VALUES (1)")
    if prepared:
        busy.execute("PREPARE TRANSACTION 'orphan'")
    said: list[str] = []
    wanted = Wanted("shop", ("*.*",), ("copy",), mend=False)
    outcome = init(url, state, wanted, said.append)
    assert outcome.membership.added == ["public.t"]
    assert said[1:] == ["public.t: complete once the transactions that are open now have ended"]
    assert state.known().members == {}
    init(url, state, wanted, said.append)  # a restart
    assert state.known().members == {}
    busy.execute("ROLLBACK PREPARED 'orphan'" if prepared else "ROLLBACK")
    await_condition(lambda: init(url, state, wanted, quiet) and state.known().members)


@pytest.mark.parametrize("mend", [True, False])
def test_one_table_that_cannot_be_taken_out_and_in_again_is_named_and_keeps_no_other_back(
    mend: bool, url: str, state: State, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "poisons", lambda _: True)
    user, vacuum = connect(), connect()
    for name in ("a", "locked", "z"):
        user.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)".encode())
    make(url, state)
    user.execute("CREATE TABLE other (id int PRIMARY KEY)")
    state.connection.execute("UPDATE runnel.subscription SET members = '{}'")  # found un-noted
    vacuum.execute("BEGIN")
    vacuum.execute("LOCK TABLE locked IN SHARE UPDATE EXCLUSIVE MODE")
    notes = make(url, state, mend=mend).notes
    assert len(notes) == 1
    assert notes[0].startswith("public.locked could not be taken out of the publication and in again")
    assert "locked by somebody else" in notes[0]
    assert len(state.known().members) == 3
    vacuum.execute("COMMIT")
    assert make(url, state, mend=mend).notes == []
    assert len(state.known().members) == 4


PARTITIONED = [
    "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    "CREATE TABLE p_open PARTITION OF p FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE p_secret PARTITION OF p FOR VALUES FROM (10) TO (20)",
]


def test_an_excluded_partition_of_a_captured_table_is_refused_and_shown(
    runnel_cli: RunnelCli, url: str, state: State, connect: Connect
) -> None:
    user = connect()
    for statement in PARTITIONED[:2]:
        user.execute(statement.encode())
    runnel_cli.config(
        f"source: {{url: '{url}', name: shop, tables: ['public.*', '!public.p_secret']}}\n"
        "pipelines:\n  copy: {sink: {type: files, path: out}}\n"
    )
    runnel_cli.run("init")
    user.execute(PARTITIONED[2].encode())
    said = "it is a partition, and the table above is published as a whole"
    assert f"public.p without public.p_secret: {said}" in runnel_cli.run("init", expect=1).stderr
    assert "public.p_secret" in runnel_cli.run("check", expect=1).stdout
    assert "partition public.p_secret is excluded, but captured" in runnel_cli.run("status").stdout
    with pytest.raises(RunnelError) as caught:
        make(url, state, "public.*", "!public.p_secret")
    assert "'!public.p'" in caught.value.hint


def test_what_came_over_a_captured_table_is_reported_by_the_implied_init_and_refused_by_init(
    url: str, state: State, connect: Connect
) -> None:
    user = connect()
    for statement in PARTITIONED:
        user.execute(statement.encode())
    patterns = ["public.*", "!public.*_old"]
    user.execute("CREATE TABLE e (id int) PARTITION BY RANGE (id)")
    user.execute("CREATE TABLE e_1 PARTITION OF e FOR VALUES FROM (0) TO (10)")
    user.execute("ALTER TABLE e REPLICA IDENTITY FULL")
    user.execute("ALTER TABLE e_1 REPLICA IDENTITY FULL")
    make(url, state, *patterns, "public.e")
    user.execute("ALTER TABLE p_open RENAME TO p_old")
    user.execute("CREATE TABLE e_2 PARTITION OF e FOR VALUES FROM (10) TO (20)")
    problems = make(url, state, *patterns, "public.e", mend=False).membership.problems()
    assert [(problem.label, problem.published) for problem in problems] == [
        ("public.e", True),
        ("public.p", True),
    ]
    for wish in ([*patterns, "public.e"], patterns, ["public.e"]):
        with pytest.raises(RunnelError, match="cannot publish"):
            make(url, state, *wish)
    user.execute("CREATE TABLE fresh (id int)")
    with pytest.raises(RunnelError, match=r"public\.fresh"):
        make(url, state, *patterns, "public.e", "public.fresh", mend=False)


def test_partitions_are_out_with_their_excluded_root_unless_named(
    url: str, state: State, connect: Connect
) -> None:
    for statement in PARTITIONED:
        connect().execute(statement.encode())
    assert make(url, state, "public.*", "!public.p").membership.tables == []
    named = make(url, state, "public.*", "!public.p", "public.p_open").membership
    assert [table.label for table in named.tables] == ["public.p_open"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("command", "code", "waits"),
    [("init", 130, "for the slot"), ("init", 130, "for a table that joined"), ("run", 0, "for the slot")],
)
def test_a_signal_ends_an_init_that_waits_for_a_transaction(
    runnel_cli: RunnelCli,
    url: str,
    state: State,
    connect: Connect,
    number: signal.Signals,
    command: str,
    code: int,
    waits: str,
) -> None:
    busy = connect()
    runnel_cli.config(
        f"source: {{url: '{url}', name: shop}}\npipelines:\n  copy: {{sink: {{type: files, path: out}}}}\n"
    )
    if waits == "for a table that joined":
        make(url, state)
    busy.execute("CREATE TABLE t (id int PRIMARY KEY)")
    busy.execute("BEGIN")
    busy.execute("INSERT INTO t VALUES (1)")
    process = runnel_cli.start(command)
    assert process.stderr is not None
    assert any("waiting for transaction" in line for line in iter(process.stderr.readline, ""))
    process.send_signal(number)
    assert process.wait(20) == code
    assert "Traceback" not in process.stderr.read()
    slots = "SELECT slot_name FROM pg_replication_slots WHERE confirmed_flush_lsn IS NULL"
    await_condition(lambda: busy.execute(slots).fetchall() == [])
    busy.execute("COMMIT")
    assert make(url, state).subscription.complete


def test_failover_asked_for_later_is_set_once_nobody_reads_the_slot(
    runnel_cli: RunnelCli, url: str, state: State, connect: Connect
) -> None:
    made = make(url, state).subscription
    runnel_cli.config(
        f"source: {{url: '{url}', name: shop, failover: true}}\n"
        "pipelines:\n  copy: {sink: {type: files, path: out}}\n"
    )
    if connect().info.server_version < 170_000:
        assert "source.failover needs PostgreSQL 17" in runnel_cli.run("init").stdout
        return
    warning = f"not in force: slot {made.slot}"
    assert warning in _unfolded(runnel_cli.run("check").stdout)
    stream = ReplicationStream(url, "test")
    try:
        stream.start(made.slot, "shop", made.consistent_lsn, streaming=True)
        said = runnel_cli.run("init").stdout
        assert f"source.failover is not in force: slot {made.slot}" in said
        assert "(somebody reads it): stop capture, then runnel init" in said
    finally:
        stream.close()
    await_condition(lambda: f"slot {made.slot} is a failover slot" in runnel_cli.run("init").stdout)
    failover = connect().execute(
        "SELECT failover FROM pg_replication_slots WHERE slot_name = %s", [made.slot]
    )
    assert failover.fetchone() == (True,)
    assert warning not in _unfolded(runnel_cli.run("check").stdout)
    assert "failover" not in runnel_cli.run("init").stdout


def _unfolded(text: str) -> str:
    return " ".join(text.split())
