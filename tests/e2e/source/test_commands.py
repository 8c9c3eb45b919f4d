"""The commands that look at and change a subscription, as a user types them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from conftest import RunnelCli
from logs import LogMaker
from runnel.demo.server import Server
from runnel.errors import RunnelError
from runnel.postgres.lsn import Lsn
from runnel.progress.state import State
from runnel.sinks.api import Reject
from servers import Database, MakeServer, await_condition

Connect = Callable[[], psycopg.Connection]


@pytest.fixture
def cli(runnel_cli: RunnelCli, url: str) -> RunnelCli:
    configure(runnel_cli, url)
    return runnel_cli


def configure(cli: RunnelCli, url: str, tables: str = '["*.*"]', more: str = "") -> None:
    cli.config(
        f"source: {{url: '{url}', name: shop, tables: {tables}}}\n"
        "pipelines:\n  copy: {sink: {type: files, path: out, format: jsonl}}\n" + more
    )


def status(cli: RunnelCli) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cli.run("status", "--json").stdout)
    return found


def test_init_tells_where_pipelines_begin_and_which_tables_stay_out(
    cli: RunnelCli, state: State, connect: Connect
) -> None:
    connect().execute("CREATE TABLE no_key (id int)")
    connect().execute("CREATE TABLE t (id int PRIMARY KEY)")
    done = cli.run("init")
    subscription = state.known()
    assert f"slot {subscription.slot}, 1 table\n" in done.stdout
    assert f"pipeline copy begins at {subscription.consistent_lsn}" in done.stdout
    assert "ALTER TABLE public.no_key REPLICA IDENTITY FULL" in done.stdout
    assert "begins at" not in cli.run("init").stdout


def test_an_init_that_was_killed_while_a_pipeline_joined_is_finished_by_the_next(
    cli: RunnelCli, url: str, state: State, connect: Connect
) -> None:
    cli.run("init")
    configure(cli, url, more="  late: {sink: {type: files, path: late}}\n")
    cli.run("init", expect=-9, env={"RUNNEL_FAILPOINTS": "init.joining=kill"})
    left = state.pipelines()["late"].position.lsn
    with pytest.raises(RunnelError, match="not known") as caught:
        state.claim_pipeline("late")
    assert caught.value.hint == "runnel init"
    state.set_state("late", "failed")
    connect().execute("CREATE TABLE t (id int PRIMARY KEY)")
    assert "pipeline late begins at" in cli.run("init").stdout
    assert state.claim_pipeline("late").lsn > left
    assert "begins at" not in cli.run("init").stdout


def test_init_fails_for_a_literal_table_without_identity(
    cli: RunnelCli, url: str, connect: Connect
) -> None:
    connect().execute("CREATE TABLE no_key (id int)")
    configure(cli, url, '["public.no_key"]')
    done = cli.run("init", expect=1)
    assert done.stderr.splitlines() == [
        "runnel: cannot publish public.no_key: no primary key: Postgres would refuse its updates",
        "  → ALTER TABLE public.no_key REPLICA IDENTITY FULL",
    ]


def test_destroy_removes_the_log_too_and_may_be_repeated(cli: RunnelCli, state: State) -> None:
    cli.run("init")
    path = cli.directory / ".runnel" / "log"
    LogMaker(path, lineage=state.known().lineage).append(1)
    (path / "mine.txt").write_text("not the log's")
    done = cli.run("destroy")
    assert "schema runnel dropped" in done.stdout
    assert [file.name for file in path.iterdir()] == ["mine.txt"]
    assert "there is no subscription shop" in cli.run("destroy").stdout


@pytest.mark.parametrize("step", ["destroy.slot", "destroy.publication"])
def test_a_destroy_that_was_killed_is_finished_by_the_next(
    cli: RunnelCli, state: State, connect: Connect, step: str
) -> None:
    user = connect()
    user.execute("CREATE TABLE t (id int PRIMARY KEY)")
    cli.run("init")
    LogMaker(cli.directory / ".runnel" / "log", lineage=state.known().lineage).append(1)
    cli.run("destroy", expect=-9, env={"RUNNEL_FAILPOINTS": f"{step}=kill"})
    assert not user.execute(
        "SELECT FROM pg_replication_slots WHERE database = current_database()"
    ).fetchall(), "the slot goes first: nothing else could fill the server's disk"
    assert state.subscription() is not None
    assert "schema runnel dropped" in cli.run("destroy").stdout
    left = user.execute(
        "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
        " UNION ALL SELECT pubname FROM pg_publication"
        " UNION ALL SELECT nspname FROM pg_namespace WHERE nspname = 'runnel'"
    ).fetchall()
    assert left == []
    log = cli.directory / ".runnel" / "log"
    assert not log.exists() or not list(log.iterdir())
    assert "there is no subscription shop" in cli.run("destroy").stdout


def test_destroy_leaves_the_log_of_another_subscription(cli: RunnelCli) -> None:
    cli.run("init")
    path = cli.directory / ".runnel" / "log"
    LogMaker(path).append(1)
    before = sorted(file.name for file in path.iterdir())
    assert f"log {path} is left as it is" in cli.run("destroy").stdout
    assert sorted(file.name for file in path.iterdir()) == before
    cli.run("destroy")
    assert sorted(file.name for file in path.iterdir()) == before


def test_a_repeated_destroy_leaves_the_log_of_another_source_of_the_same_name(
    cli: RunnelCli, state: State
) -> None:
    cli.run("init")
    own = state.known().lineage
    cli.run("destroy")
    path = cli.directory / ".runnel" / "log"
    LogMaker(path, lineage=replace(own, system_id="42", slot="shop_0a1b2c3d")).append(1)
    before = sorted(file.name for file in path.iterdir())
    left = "left as it is: it is of slot shop_0a1b2c3d on system 42"
    assert left in cli.run("destroy").stdout
    assert sorted(file.name for file in path.iterdir()) == before


def test_a_repeated_destroy_leaves_a_log_whose_slot_lives_and_removes_one_whose_slot_is_gone(
    cli: RunnelCli, state: State, connect: Connect
) -> None:
    cli.run("init")
    own = state.known().lineage
    cli.run("destroy")
    path = cli.directory / ".runnel" / "log"
    # as another database of the server would have it
    other = f"shop_{uuid4().hex[:8]}"
    connect().execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [other])
    LogMaker(path, lineage=replace(own, slot=other)).append(1)
    before = sorted(file.name for file in path.iterdir())
    assert "which still exists" in cli.run("destroy").stdout
    assert sorted(file.name for file in path.iterdir()) == before
    connect().execute("SELECT pg_drop_replication_slot(%s)", [other])
    assert f"log {path} removed" in cli.run("destroy").stdout


def test_status_has_exactly_the_members_of_the_contract(cli: RunnelCli, connect: Connect) -> None:
    connect().execute("CREATE TABLE t (id int PRIMARY KEY)")
    cli.run("init")
    shown = status(cli)
    assert list(shown) == ["source", "capture", "pipelines", "tables"]
    assert list(shown["source"]) == [
        *("name", "server", "system_id", "timeline", "slot", "wal_status"),
        *("current_lsn", "confirmed_lsn", "retained_bytes", "safe_wal_bytes"),
    ]
    assert list(shown["capture"]) == ["state", "received_lsn", "log_lsn", "log_bytes", "error"]
    assert list(shown["pipelines"]["copy"]) == [
        *("state", "lsn", "lag_bytes", "lag_seconds", "changes", "rate", "dead_letters", "error"),
    ]
    assert shown["tables"] == {
        "public.t": {
            "published": True,
            "identity": "default",
            "reason": None,
            "pipelines": {"copy": {"state": "live"}},
        }
    }
    assert (shown["capture"]["state"], shown["pipelines"]["copy"]["state"]) == ("stopped", "stopped")


def test_status_believes_a_state_only_while_its_owner_lives(cli: RunnelCli, state: State, url: str) -> None:
    cli.run("init")
    with State.connect(url, "shop") as owner:
        owner.claim_pipeline("copy")
        owner.set_state("copy", "failed", error="the disk is full")
        owner.claim_capture()
        owner.set_state("capture", "paused", detail={"why": "the log is full"})
        shown = status(cli)
        assert shown["pipelines"]["copy"]["state"] == "failed"
        assert (shown["capture"]["state"], shown["capture"]["error"]) == ("paused", "the log is full")
    shown = status(cli)
    assert shown["capture"]["state"] == "stopped"
    assert shown["pipelines"]["copy"]["state"] == "stopped"
    assert shown["pipelines"]["copy"]["error"] == "the disk is full"


def test_status_tells_what_is_pending_from_the_log(cli: RunnelCli, state: State) -> None:
    cli.run("init")
    subscription = state.known()
    begin = subscription.consistent_lsn
    log = LogMaker(cli.directory / ".runnel" / "log", start=begin, lineage=subscription.lineage)
    log.advance()
    shown = status(cli)["pipelines"]["copy"]
    assert (shown["lag_bytes"], shown["lag_seconds"]) == (0, 0.0)
    end = log.append(3)
    shown = status(cli)
    assert shown["pipelines"]["copy"]["lag_bytes"] == end - begin
    assert shown["pipelines"]["copy"]["lag_seconds"] > 0
    assert shown["capture"]["log_lsn"] == shown["capture"]["received_lsn"] == str(end)
    assert shown["capture"]["log_bytes"] > 0
    position = state.claim_pipeline("copy")
    state.store_position("copy", position.at(end), 3)
    shown = status(cli)["pipelines"]["copy"]
    assert (shown["lag_bytes"], shown["lag_seconds"], shown["changes"]) == (0, 0.0, 3)


def test_status_of_a_running_capture_shows_what_it_received(cli: RunnelCli, connect: Connect) -> None:
    user = connect()
    user.execute("CREATE TABLE t (id int PRIMARY KEY)")
    cli.run("init")
    cli.start("capture")
    await_condition(lambda: status(cli)["capture"]["state"] == "streaming")
    user.execute("INSERT INTO t SELECT generate_series(1, 100)")
    row = user.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None

    def received() -> bool:
        shown = status(cli)
        return bool(
            Lsn.parse(shown["capture"]["received_lsn"] or "0/0") >= Lsn.parse(row[0])
            and shown["pipelines"]["copy"]["lag_bytes"] > 0
        )

    await_condition(received)


def test_status_names_who_holds_the_slot(cli: RunnelCli, state: State) -> None:
    cli.run("init")
    state.register("forgotten", Lsn(1))
    state.claim_capture()
    text = cli.run("status").stdout
    assert "pipeline forgotten is not configured and holds the slot → runnel remove forgotten" in text
    assert "pipeline copy is not running and holds the slot" in text
    cli.run("remove", "forgotten")
    cli.run("pause", "copy")
    assert state.pipelines()["copy"].paused
    assert "pipeline copy is paused and holds the slot → runnel resume copy" in cli.run("status").stdout
    cli.run("resume", "copy")
    assert not state.pipelines()["copy"].paused


def test_status_of_a_lost_slot_says_so(cli: RunnelCli, state: State, connect: Connect) -> None:
    cli.run("init")
    connect().execute("SELECT pg_drop_replication_slot(%s)", [state.known().slot])
    shown = status(cli)["source"]
    assert (shown["wal_status"], shown["confirmed_lsn"]) == ("missing", None)
    assert "does not exist any more" in cli.run("status").stdout


@pytest.mark.parametrize(
    "command", [["status"], ["pause", "copy"], ["remove", "copy"], ["dead-letters", "list"]]
)
def test_without_a_subscription_a_command_says_how_to_make_one(cli: RunnelCli, command: list[str]) -> None:
    done = cli.run(*command, expect=1)
    assert done.stderr.splitlines() == ["runnel: subscription 'shop' does not exist", "  → runnel init"]


def test_an_unknown_pipeline_is_told_the_known_ones(cli: RunnelCli) -> None:
    cli.run("init")
    for command in ("pause", "resume", "remove"):
        assert "(known: copy)" in cli.run(command, "kopie", expect=1).stderr


def test_letters_are_listed_shown_and_dropped(cli: RunnelCli, state: State) -> None:
    cli.run("init")
    change = '{"op":"insert","after":{"name":"[bold]ü[/]"}}'
    rejects = [Reject(Lsn(n), 2, "public.t", f'{{"id":{n}}}', change, "too long") for n in (16, 32)]
    state.store_letters("copy", rejects)
    listed = cli.run("dead-letters", "list").stdout
    assert "0/10:2" in listed
    assert "too long" in listed
    lines = cli.run("dead-letters", "list", "copy", "--json").stdout.splitlines()
    assert [(json.loads(line)["lsn"], json.loads(line)["change"]) for line in lines] == [
        ("0/10", change),
        ("0/20", change),
    ]
    assert cli.run("dead-letters", "show", "copy", "0/20:2").stdout.strip() == change
    assert "no letter" in cli.run("dead-letters", "show", "copy", "0/30:2", expect=2).stderr
    assert "has 2 dead letters" in cli.run("remove", "copy", expect=1).stderr
    assert "which letters?" in cli.run("dead-letters", "drop", "copy", expect=2).stderr
    cli.run("dead-letters", "drop", "copy", "0/20:2")
    assert state.parked("copy") == [("public.t", '{"id":16}')]
    cli.run("remove", "copy", "--with-letters")
    assert state.letters() == []


def test_letters_of_a_table_whose_name_holds_a_dot_are_found_by_its_name_in_quotes(
    cli: RunnelCli, state: State
) -> None:
    cli.run("init")
    tables = ('"a.b".c', 'a."b.c"')
    change = '{"op":"insert"}'
    state.store_letters("copy", [Reject(Lsn(n), 0, t, "{}", change, "") for n, t in enumerate(tables, 16)])
    found = cli.run("dead-letters", "list", "--json", "--table", '"a.b"."c"').stdout.splitlines()
    assert [json.loads(line)["table"] for line in found] == ['"a.b".c']
    cli.run("dead-letters", "drop", "copy", "--table", 'a."b.c"')
    assert state.parked("copy") == [('"a.b".c', "{}")]


def test_a_ready_source_passes_the_check_and_surprises_are_told(cli: RunnelCli, connect: Connect) -> None:
    user = connect()
    user.execute("CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    user.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (9)")
    user.execute("CREATE TABLE no_key (id int)")
    found = json.loads(cli.run("check", "--json").stdout)
    assert found["ready"]
    warned = {f["subject"]: f for f in found["findings"] if f["level"] == "warn"}
    old = user.info.server_version < 140_000
    assert set(warned) == {"public.p", "public.no_key"} | ({"source.messages"} if old else set())
    assert "TRUNCATE" in warned["public.p"]["message"]
    assert warned["public.no_key"]["sql"] == "ALTER TABLE public.no_key REPLICA IDENTITY FULL"
    assert "wal_level" in cli.run("check").stdout


def test_the_check_tells_the_replica_identity_of_each_table(cli: RunnelCli, connect: Connect) -> None:
    user = connect()
    for number in range(12):
        user.execute(f"CREATE TABLE t{number:02} (id int PRIMARY KEY)".encode())
    user.execute("ALTER TABLE t03 REPLICA IDENTITY FULL")
    user.execute("CREATE TABLE no_key (id int)")
    user.execute("CREATE TABLE whole (id int)")
    user.execute("ALTER TABLE whole REPLICA IDENTITY FULL")
    found = json.loads(cli.run("check", "--json").stdout)["findings"]
    told = {f["subject"]: f["identity"] for f in found if f["identity"]}
    assert sum(f["identity"] is not None for f in found) == len(told) == 14
    assert {name for name, identity in told.items() if identity == "full"} == {"public.t03", "public.whole"}
    assert told["public.no_key"] == told["public.t00"] == "default"
    shown = " ".join(cli.run("check").stdout.split())
    assert "11 tables replica identity default: public.t00, public.t01, public.t02, public.t04" in shown
    assert "public.t10 …" in shown
    assert "1 table replica identity full: public.t03" in shown
    assert "replica identity full without a primary key: changes have no key: public.whole" in shown


@pytest.mark.long
def test_a_server_that_sends_no_messages_is_told_unless_none_are_wanted(
    runnel_cli: RunnelCli, make_server: MakeServer
) -> None:
    url = make_server(13).url()

    def warned() -> set[str]:
        found = json.loads(runnel_cli.run("check", "--json").stdout)["findings"]
        return {f["subject"] for f in found if f["level"] == "warn"}

    sink = "pipelines: {copy: {sink: {type: stdout}}}"
    runnel_cli.config(f"source: {{url: '{url}', name: shop}}\n{sink}\n")
    assert "source.messages" in warned()
    runnel_cli.config(f"source: {{url: '{url}', name: shop, messages: false}}\n{sink}\n")
    assert "source.messages" not in warned()


def test_a_literal_table_without_identity_or_existence_blocks(
    cli: RunnelCli, url: str, connect: Connect
) -> None:
    connect().execute("CREATE TABLE no_key (id int)")
    configure(cli, url, '["public.no_key", "public.gone"]')
    found = json.loads(cli.run("check", "--json", expect=1).stdout)
    blocked = {f["subject"] for f in found["findings"] if f["level"] == "block"}
    assert blocked == {"public.no_key", "public.gone"}


def test_a_role_without_privileges_is_told_each_grant(
    runnel_cli: RunnelCli, database: Database, server: Server, connect: Connect
) -> None:
    role = database.name
    connect().execute(f"CREATE ROLE {role} LOGIN PASSWORD 'pass-for-{role}'".encode())
    configure(runnel_cli, f"postgresql://{role}:pass-for-{role}@{server.host}:{server.port}/{role}")
    done = runnel_cli.run("check", "--json", expect=1)
    blocked = {f["subject"]: f["sql"] for f in json.loads(done.stdout)["findings"] if f["level"] == "block"}
    assert blocked["replication"] == f"ALTER ROLE {role} REPLICATION"
    assert blocked["create"] == f"GRANT CREATE ON DATABASE {role} TO {role}"
    assert "replication connection" in blocked
    assert "pass-for" not in done.stdout + done.stderr


@pytest.mark.long
def test_a_server_that_is_not_prepared_is_told_each_setting(
    runnel_cli: RunnelCli, make_server: MakeServer
) -> None:
    server = make_server(
        18,
        wal_level="replica",
        max_replication_slots=0,
        max_slot_wal_keep_size="64MB",
        idle_replication_slot_timeout="1h",
        wal_sender_timeout="1s",
    )
    configure(runnel_cli, server.url())
    findings = json.loads(runnel_cli.run("check", "--json", expect=1).stdout)["findings"]
    told = {f["subject"]: f["level"] for f in findings if f["level"] != "ok"}
    assert told.items() >= {
        ("wal_level", "block"),
        ("max_replication_slots", "block"),
        ("max_slot_wal_keep_size", "warn"),
        ("idle_replication_slot_timeout", "warn"),
        ("wal_sender_timeout", "warn"),
    }
    assert "ALTER SYSTEM SET wal_level" in runnel_cli.run("init", expect=1).stderr
