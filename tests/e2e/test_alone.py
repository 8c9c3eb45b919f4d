"""The two halves of `run` started by hand: who starts them reads on stderr what happens and why it ended."""

from __future__ import annotations

from collections.abc import Callable

from product import Runnel, eventually
from servers import Database


def test_each_half_runs_alone_and_says_what_it_does(
    make_runnel: Callable[..., Runnel], pg: Database
) -> None:
    pg.execute("CREATE TABLE t (id int PRIMARY KEY)")
    runnel = make_runnel(pg.url)
    runnel.run("init")
    capture, pipeline = runnel.start("capture"), runnel.start("pipeline", "copy")
    pg.execute("INSERT INTO t VALUES (1)")
    runnel.await_delivery()
    assert [line["key"] for line in runnel.lines()] == [{"id": 1}]
    eventually("its states", lambda: "copy is live" in runnel.errors(), tell=runnel.errors)
    runnel.stop(pipeline)
    runnel.stop(capture)


def test_a_pipeline_that_cannot_go_on_ends_with_the_reason_and_the_way_out(
    make_runnel: Callable[..., Runnel], pg: Database
) -> None:
    pg.execute("CREATE TABLE t (id int PRIMARY KEY)")
    runnel = make_runnel(pg.url, spark={"spark.scheduler.mode": "sideways"})
    runnel.run("init")
    wrong = runnel.run("pipeline", "copy", code=1)
    assert "sideways" in wrong.stderr, wrong.stderr
    assert "Spark did not start" in wrong.stderr

    runnel.config["spark"] = {"master": "local[2]"}
    runnel.write()
    runnel.run("pipeline", "copy", "--until", "0/1")
    (runnel.out / "_runnel" / "position.json").write_text("{}")
    refused = runnel.run("pipeline", "copy", code=1)
    what, remedy = refused.stderr.splitlines()[-2:]
    assert what.startswith("runnel: ")
    assert "position.json" in what
    assert remedy.startswith("  → ")
