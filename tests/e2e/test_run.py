"""`runnel run` on a real server, from a commit to the line in a file."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from conftest import RunnelCli
from product import environment
from runnel.capture.stream import ReplicationStream
from runnel.demo.scratch import die_with_parent
from runnel.postgres.lsn import Lsn
from servers import Database, await_condition
from shop import Shop


@pytest.fixture
def shop(pg: Database, tmp_path: Path) -> Shop:
    return Shop(pg, tmp_path)


LARGE = "INSERT INTO orders SELECT i, repeat('x', 50) FROM generate_series(1000001, 1200000) i"


def current_lsn(pg: Database) -> Lsn:
    with pg.connect() as connection:
        row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    return Lsn.parse(row[0])


def slot_confirmed(pg: Database) -> str:
    with pg.connect() as connection:
        row = connection.execute(
            "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE database = current_database()"
        ).fetchone()
    assert row is not None
    return str(row[0])


def test_once_delivers_everything_up_to_now_and_a_second_time_only_what_is_new(
    shop: Shop, runnel_cli: RunnelCli
) -> None:
    runnel_cli.config(shop.config())
    runnel_cli.run("init")
    before = slot_confirmed(shop.pg)
    shop.work()
    done = runnel_cli.run("run", "--once")
    assert not done.stdout
    assert "Traceback" not in done.stderr
    shop.verify()
    assert shop.rows()
    assert slot_confirmed(shop.pg) > before
    shop.work()
    runnel_cli.run("run", "--once")
    shop.verify()
    status = json.loads(runnel_cli.run("status", "--json").stdout)
    assert status["pipelines"]["events"]["state"] == "stopped"
    assert status["pipelines"]["events"]["lag_bytes"] == 0
    assert not list((runnel_cli.directory / "log" / "_spark").iterdir())


def test_a_pipeline_that_starts_while_nothing_is_new_is_never_in_trouble_and_tells_what_it_waits_for(
    shop: Shop, runnel_cli: RunnelCli
) -> None:
    runnel_cli.config(shop.config())
    runnel_cli.run("init")
    shop.work()
    runnel_cli.run("run", "--once")
    idle = runnel_cli.start("pipeline", "events")  # alone: the log does not move
    scratch = runnel_cli.directory / "log" / "_spark"
    first = "*/pipelines/events/checkpoint-*/commits/0"
    await_condition(lambda: any(scratch.glob(first)), 120, what="the first batch, an empty one")

    def shown() -> tuple[str, str | None]:
        events = json.loads(runnel_cli.run("status", "--json").stdout)["pipelines"]["events"]
        return events["state"], events["error"]

    await_condition(lambda: shown() == ("waiting", "for capture, which is not running"), 60)
    idle.terminate()
    _, told = idle.communicate(timeout=60)
    assert idle.returncode == 0
    assert "retrying" not in told
    assert "Error" not in told


def test_a_pause_holds_a_pipeline_and_a_signal_ends_the_run_with_its_batch_finished(
    shop: Shop, runnel_cli: RunnelCli
) -> None:
    runnel_cli.config(shop.config())
    running = runnel_cli.start("run", stderr=None)
    await_condition(shop.out.exists, 120, what="the sink is open")
    shop.work()
    shop.await_delivered()
    runnel_cli.run("pause", "events")

    def status() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(runnel_cli.run("status", "--json").stdout)
        return found

    def state() -> str:
        return str(status()["pipelines"]["events"]["state"])

    await_condition(lambda: state() == "paused", 30)
    held = shop.position()
    shop.work()
    shop.pg.execute(LARGE)
    end = current_lsn(shop.pg)
    shop.pg.execute("SELECT pg_logical_emit_message(true, 'mark', '')")
    await_condition(lambda: Lsn.parse(status()["capture"]["log_lsn"]) > end, 60, what="all is in the log")
    assert state() == "paused"
    assert shop.position() == held
    runnel_cli.run("resume", "events")
    stage = runnel_cli.directory / "out" / "_runnel" / "stage"
    await_condition(lambda: any(p.is_file() for p in stage.rglob("*")), 30, what="a task writes the batch")
    assert shop.position() == held
    running.send_signal(signal.SIGTERM)
    assert running.wait(60) == 0
    assert shop.position() > end, "the batch that ran was finished"
    shop.verify()
    shop.work()
    runnel_cli.run("run", "--once")
    shop.verify()


def test_once_does_not_wait_for_a_pipeline_that_is_paused(shop: Shop, runnel_cli: RunnelCli) -> None:
    runnel_cli.config(shop.config())
    runnel_cli.run("init")
    runnel_cli.run("pause", "events")
    refused = runnel_cli.run("run", "--once", expect=1)
    assert "pipeline 'events' is paused" in refused.stderr
    assert "runnel resume events" in refused.stderr


def test_without_a_file_changes_go_to_stdout_and_the_last_line_says_that_the_slot_stays(
    shop: Shop, runnel_cli: RunnelCli
) -> None:
    first = runnel_cli.run("run", "--once", "--source", shop.pg.url, "--sink", "stdout")
    assert not first.stdout
    assert "can read the password in --source" in first.stderr
    shop.work(3)
    second = runnel_cli.run("run", "--once", "--sink", "stdout", env={"RUNNEL_SOURCE_URL": shop.pg.url})
    assert "password" not in second.stderr.partition("to remove it")[0]
    changes = [json.loads(line) for line in second.stdout.splitlines()]
    assert changes[0]["op"] == "insert"
    assert len({(change["lsn"], change["seq"]) for change in changes}) == len(changes)
    last = second.stderr.splitlines()[-1]
    assert "slot runnel_" in last
    assert "runnel destroy" in last


def test_the_last_line_says_that_the_slot_stays_also_when_the_run_fails(
    shop: Shop, runnel_cli: RunnelCli
) -> None:
    arguments = ("run", "--once", "--source", shop.pg.url, "--sink", "files,path=out,max_record_bytes=4096")
    runnel_cli.run(*arguments)
    shop.pg.execute("INSERT INTO orders VALUES (1, repeat('x', 9000))")
    lines = runnel_cli.run(*arguments, expect=1).stderr.splitlines()
    assert "runnel: " in lines[-3]
    assert lines[-2].startswith("  → ")
    assert "slot runnel_" in lines[-1]
    assert "runnel destroy" in lines[-1]


def test_once_ends_while_somebody_else_reads_the_slot(shop: Shop, runnel_cli: RunnelCli) -> None:
    runnel_cli.config(shop.config())
    runnel_cli.run("init")
    with shop.pg.connect() as connection:
        row = connection.execute("SELECT slot_name FROM pg_replication_slots").fetchone()
    assert row is not None
    stranger = ReplicationStream(shop.pg.url, "a stranger")
    stranger.start(row[0], "shop", Lsn(0), streaming=False)
    # as the command does it, but for the minute
    impatient = (
        "from runnel.supervisor import patience; patience.ONCE_PATIENCE = 5.0;"
        "from runnel.cli.main import main; main(['run', '--once'])"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", impatient], cwd=runnel_cli.directory, env=environment(),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
            preexec_fn=die_with_parent(),
        )  # fmt: skip
    finally:
        stranger.close()
    assert done.returncode == 1, done.stderr
    what, remedy = done.stderr.splitlines()[-2:]
    assert what.startswith("runnel: capture: ")
    assert "is active" in what
    assert "find who else reads the slot" in remedy


def test_a_change_the_sink_cannot_take_stops_the_pipeline_with_one_sentence(
    shop: Shop, runnel_cli: RunnelCli
) -> None:
    runnel_cli.config(shop.config().replace("path: out}", "path: out, max_record_bytes: 4096}"))
    runnel_cli.run("init")
    shop.pg.execute("INSERT INTO orders VALUES (1, 'small'), (2, repeat('x', 9000))")
    failed = runnel_cli.run("run", "--once", expect=1)
    lines = [line for line in failed.stderr.splitlines() if line.startswith(("runnel: ", "  → "))]
    assert len(lines) == 2
    assert 'public.orders key {"id":2} at ' in lines[0]
    assert "on_error: dead_letter" in lines[1]
    assert "Traceback" not in failed.stderr
    assert not list(shop.changes())


def test_dead_letters_keep_a_row_apart_under_every_key_it_gets(shop: Shop, runnel_cli: RunnelCli) -> None:
    text = shop.config(more=", on_error: dead_letter")
    runnel_cli.config(text.replace("path: out}", "path: out, max_record_bytes: 4096}"))
    runnel_cli.run("init")
    shop.pg.execute(
        "INSERT INTO orders VALUES (1, 'small'), (2, repeat('x', 9000))",
        "UPDATE orders SET id = 3, note = 'moved' WHERE id = 2",
        "UPDATE orders SET note = 'later' WHERE id = 3",
        "INSERT INTO orders VALUES (4, 'other')",
    )
    runnel_cli.run("run", "--once")
    assert shop.copy() == {1: "small", 4: "other"}
    shop.pg.execute("DELETE FROM orders WHERE id = 3")
    runnel_cli.run("run", "--once")
    assert shop.copy() == {1: "small", 4: "other"}
    with shop.pg.connect() as connection:
        letters = connection.execute(
            "SELECT key, change::jsonb->>'op' FROM runnel.dead_letters ORDER BY lsn, seq"
        ).fetchall()
    assert letters == [
        ('{"id":2}', "insert"),
        ('{"id":3}', "update"),
        ('{"id":3}', "update"),
        ('{"id":3}', "delete"),
    ]


def test_the_key_that_a_rejected_change_moved_its_row_away_from_waits_behind_it(
    shop: Shop, runnel_cli: RunnelCli
) -> None:
    text = shop.config(more=", on_error: dead_letter")
    runnel_cli.config(text.replace("path: out}", "path: out, max_record_bytes: 4096}"))
    runnel_cli.run("init")
    shop.pg.execute(
        "INSERT INTO orders VALUES (1, 'first')",
        "UPDATE orders SET id = 5, note = repeat('x', 9000) WHERE id = 1",
        "INSERT INTO orders VALUES (1, 'second')",
    )
    runnel_cli.run("run", "--once")
    shop.pg.execute(
        "UPDATE orders SET note = 'third' WHERE id = 1", "INSERT INTO orders VALUES (6, 'other')"
    )
    runnel_cli.run("run", "--once")
    assert shop.copy() == {1: "first", 6: "other"}
    letters = runnel_cli.run("dead-letters", "list", "--json").stdout.splitlines()
    changes = [json.loads(json.loads(letter)["change"]) for letter in letters]
    assert sorted((change["op"], change["key"]["id"]) for change in changes) == [
        ("insert", 1),
        ("update", 1),
        ("update", 5),
    ]


def test_a_running_query_learns_which_keys_are_parked_and_which_are_free_again(
    shop: Shop, runnel_cli: RunnelCli
) -> None:
    text = shop.config(more=", on_error: dead_letter")
    runnel_cli.config(text.replace("path: out}", "path: out, max_record_bytes: 4096}"))
    runnel_cli.run("init")
    running = runnel_cli.start("run", stderr=None)

    def letters() -> list[tuple[str, str]]:
        with shop.pg.connect() as connection:
            return connection.execute(
                """SELECT "table", change::jsonb->>'op' FROM runnel.dead_letters ORDER BY lsn, seq"""
            ).fetchall()

    shop.pg.execute("SELECT pg_logical_emit_message(true, 'app', repeat('x', 9000))")
    await_condition(lambda: letters() == [("", "message")], 120, what="the message is a letter")
    orders = "public.orders"
    expected = [("", "message"), (orders, "insert"), (orders, "update"), (orders, "update")]

    def are(count: int) -> bool:
        return letters() == expected[:count]

    for count, statement in enumerate(
        (
            "INSERT INTO orders VALUES (1, repeat('x', 9000))",
            "UPDATE orders SET id = 2",
            "UPDATE orders SET note = 'later' WHERE id = 2",
        ),
        2,
    ):
        shop.pg.execute(statement)
        await_condition(partial(are, count), 60, what=statement)

    def lives() -> int:
        with shop.pg.connect() as connection:
            row = connection.execute("SELECT epoch FROM runnel.progress").fetchone()
        assert row is not None
        return int(row[0])

    before = lives()
    runnel_cli.run("dead-letters", "drop", "events", "--all")
    await_condition(lambda: lives() > before, 60, what="the query starts anew")
    shop.pg.execute("UPDATE orders SET note = 'free' WHERE id = 2")
    shop.await_delivered()
    assert shop.copy() == {2: "free"}
    running.terminate()
    assert running.wait(60) == 0


def delivered(shop: Shop) -> list[tuple[str, int, int]]:
    """Operation, key and length of the note of every change, in the order of the files."""
    return [(c["op"], c["key"]["id"], len(c.get("after", {}).get("note") or "")) for c in shop.changes()]


def test_letters_of_a_killed_replay_come_once_and_in_order_also_if_the_pipeline_ran_meanwhile(
    shop: Shop, runnel_cli: RunnelCli
) -> None:
    text = shop.config(more=", on_error: dead_letter")
    runnel_cli.config(text.replace("path: out}", "path: out, max_record_bytes: 4096}"))
    runnel_cli.run("init")
    shop.pg.execute(
        "INSERT INTO orders VALUES (1, 'small'), (2, repeat('x', 9000))",
        "UPDATE orders SET id = 3, note = 'moved' WHERE id = 2",
        "INSERT INTO orders VALUES (4, repeat('y', 9000))",
    )
    runnel_cli.run("run", "--once")
    runnel_cli.config(text)
    replay = ("dead-letters", "replay", "events", "--key", '{"id":3}')
    runnel_cli.run(*replay, expect=-9, env={"RUNNEL_FAILPOINTS": "letters.delivered=kill"})
    shop.pg.execute("UPDATE orders SET note = 'meanwhile' WHERE id = 3")
    runnel_cli.run("run", "--once")
    runnel_cli.run(*replay)
    shop.pg.execute("DELETE FROM orders WHERE id = 3")
    runnel_cli.run("run", "--once")
    assert delivered(shop) == [
        ("insert", 1, 5),
        ("insert", 2, 9000),
        ("update", 3, 5),
        ("update", 3, 9),
        ("delete", 3, 0),
    ]
    with shop.pg.connect() as connection:
        assert connection.execute("SELECT key FROM runnel.parked").fetchall() == [('{"id":4}',)]


def test_a_replay_to_standard_output_survives_a_kill_and_takes_nothing_back_from_the_slot(
    shop: Shop, runnel_cli: RunnelCli
) -> None:
    runnel_cli.config(shop.config(retain="1h").replace("{type: files, path: out}", "{type: stdout}"))
    runnel_cli.run("init")
    shop.work()
    first = runnel_cli.run("run", "--once").stdout.splitlines()
    middle = json.loads(first[len(first) // 2])["lsn"]
    confirmed = slot_confirmed(shop.pg)
    runnel_cli.run("replay", "events", "--from", middle)
    assert slot_confirmed(shop.pg) == confirmed
    once = runnel_cli.directory / "once"
    once.mkdir()
    killed = {"RUNNEL_FAILPOINTS": "sink.committed=kill", "RUNNEL_FAILPOINTS_ONCE": str(once)}
    again = runnel_cli.run("run", "--once", env=killed).stdout.splitlines()
    assert (once / "sink.committed").exists()
    wanted = [line for line in first if Lsn.parse(json.loads(line)["lsn"]) >= Lsn.parse(middle)]
    assert len(again) > len(wanted), "what was printed before the kill comes again"
    assert again[-len(wanted) :] == wanted
    assert set(again) == set(wanted)
    assert Lsn.parse(slot_confirmed(shop.pg)) >= Lsn.parse(confirmed)
    shop.pg.execute("INSERT INTO orders VALUES (100001, 'new')")
    (new,) = runnel_cli.run("run", "--once").stdout.splitlines()
    assert json.loads(new)["after"]["note"] == "new"


def test_a_replay_delivers_again_what_the_log_keeps(shop: Shop, runnel_cli: RunnelCli) -> None:
    runnel_cli.config(shop.config(retain="1h"))
    runnel_cli.run("init")
    shop.work(5)
    runnel_cli.run("run", "--once")
    first = list(shop.changes())
    middle = first[len(first) // 2]["lsn"]
    runnel_cli.run("replay", "events", "--from", middle)
    runnel_cli.config(shop.config())  # nothing is retained any more but what the replay needs
    assert f"delivers again from {middle}" in runnel_cli.run("status").stdout
    runnel_cli.run("run", "--once")
    again = list(shop.changes())[len(first) :]
    assert again == [change for change in first if change["lsn"] >= middle]
    late = runnel_cli.run("replay", "events", "--from", "2000-01-01T00:00:00Z", expect=1)
    assert "log.retain" in late.stderr


def test_a_pipeline_that_was_removed_and_registered_again_begins_at_that_moment(
    shop: Shop, runnel_cli: RunnelCli
) -> None:
    runnel_cli.config(shop.config())
    runnel_cli.run("init")
    shop.pg.execute("INSERT INTO orders VALUES (901, 'before')")
    runnel_cli.run("run", "--once")
    runnel_cli.run("remove", "events")
    shop.pg.execute("INSERT INTO orders VALUES (902, 'between')")
    runnel_cli.run("init")
    shop.pg.execute("INSERT INTO orders VALUES (903, 'after')")
    done = runnel_cli.run("run", "--once")
    assert "registered anew" in done.stderr
    assert [change["after"]["id"] for change in shop.changes()] == [901, 903]


def test_a_failed_pipeline_does_not_stop_the_others_and_trouble_that_may_heal_is_retried(
    shop: Shop, runnel_cli: RunnelCli
) -> None:
    small = "  small: {sink: {type: files, path: small, max_record_bytes: 200}}\nspark:"
    runnel_cli.config(shop.config().replace("spark:", small))
    runnel_cli.run("init")
    # the sink has committed, then the batch fails: the query starts again at the sink's position
    running = runnel_cli.start("run", env={"RUNNEL_FAILPOINTS": "pipeline.delivered=raise"}, stderr=None)
    shop.work()
    shop.pg.execute("INSERT INTO orders VALUES (0, repeat('x', 300))")
    shop.await_delivered()

    def states() -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = json.loads(runnel_cli.run("status", "--json").stdout)[
            "pipelines"
        ]
        return found

    await_condition(lambda: states()["small"]["error"], 60)
    assert 'key {"id":0}' in states()["small"]["error"]
    shop.work()
    shop.await_delivered()
    await_condition(lambda: states()["events"]["state"] == "live", 30)
    running.terminate()
    assert running.wait(60) == 0
    runnel_cli.run("run", "--once", "events")
    shop.verify()
