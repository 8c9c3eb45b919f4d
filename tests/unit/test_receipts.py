"""What tasks tell the driver, and what the driver makes of it."""

from __future__ import annotations

from dataclasses import replace

from runnel.errors import Kind
from runnel.postgres.lsn import Lsn
from runnel.sinks.api import Plan, Reject
from runnel.spark.receipts import BatchReport, TaskError, TaskReport
from runnel.spark.work import WorkSpec


def report(index: int = 0, **more: object) -> TaskReport:
    return TaskReport(index, Lsn(10), Lsn(20), **more)  # type: ignore[arg-type]


def reject(seq: int) -> Reject:
    return Reject(Lsn(15), seq, "public.orders", '{"id":1}', "{}", "too long")


def test_a_report_survives_its_way_through_spark() -> None:
    sent = report(
        captured=3,
        changes=2,
        first_time=5,
        payload={"pieces": [1, "ü"]},
        rejects=[reject(0)],
        letters=[reject(1)],
        error=TaskError(Kind.DATA, "what", "what to do"),
    )
    assert TaskReport.from_json(sent.to_json()) == sent


def test_reports_are_brought_into_commit_order() -> None:
    batch = BatchReport.collect([report(1, changes=1).to_json(), report(0, changes=2).to_json()])
    assert [task.index for task in batch.reports] == [0, 1]
    assert batch.changes == 3
    assert (batch.start, batch.end) == (10, 20)


def test_times_of_empty_tasks_do_not_count() -> None:
    batch = BatchReport([report(0), report(1, first_time=7, last_time=9), report(2)])
    assert (batch.first_time, batch.last_time) == (7, 9)
    assert (BatchReport([report(0)]).first_time, BatchReport([report(0)]).last_time) == (0, 0)


def test_an_error_that_no_retry_mends_is_told_before_one_that_may_heal() -> None:
    healing = TaskError(Kind.TRANSIENT, "disk full", "")
    final = TaskError(Kind.REFUSED, "corrupt chunk", "")
    batch = BatchReport([report(0, error=healing), report(1, error=final)])
    assert batch.error == final
    assert BatchReport([report(0, error=healing)]).error == healing
    assert BatchReport([report(0)]).error is None


def test_a_spec_survives_its_way_through_an_option() -> None:
    spec = WorkSpec("p", "/log", "files", {"path": "/out"}, False, (("a.b", None), ("a.c", "{}")), 4)
    spec = replace(spec, plan=Plan.SINGLE, stored=(("0/10", 3, None), ("0/20", 0, '{"id":1}')))
    assert WorkSpec.from_json(spec.to_json()) == spec
