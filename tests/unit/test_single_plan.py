"""A sink whose task commits: nothing is passed that is not stored as a letter. Without Spark or a server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from contract.sqlite_sinks import LONGEST, SingleSink, SingleWriter, connect
from logs import LINEAGE, START, LogMaker
from runnel.config.models import Config
from runnel.errors import RunnelError
from runnel.postgres.lsn import Lsn
from runnel.progress.letters import Key, Passed, Rejected, keys
from runnel.progress.position import Position
from runnel.sinks.api import Attempt, Plan, Reject
from runnel.sinks.registry import SINKS, SinkType
from runnel.spark import work
from runnel.spark.admission import Share, shares
from runnel.spark.pipeline import Pipeline, Rerun
from runnel.spark.receipts import BatchReport
from runnel.spark.work import WorkSpec


class Letters:
    """State and progress in one: keeps letters as the state does, and notes what is called."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.stored: dict[tuple[Lsn, int], Rejected] = {}

    def store_letters(self, _: str, rejects: list[Rejected], most: int) -> None:
        self.calls.append("letters")
        for one in rejects:
            known = self.stored.setdefault((one.lsn, one.seq), one)
            if known.old_key is None:
                self.stored[(one.lsn, one.seq)] = one

    def behind(self) -> list[Passed]:
        return [(one.lsn, one.seq, one.old_key) for one in self.stored.values()]

    def parked(self) -> list[Key]:
        return sorted({key for one in self.stored.values() for key in keys(one)}, key=str)

    def committed(self, report: BatchReport, durable: Lsn) -> None:
        self.calls.append(f"committed {durable}")

    def store(self, _: object) -> None:
        self.calls.append("position")


class _Single(SinkType):
    def writer(self, task: Mapping[str, Any], attempt: Attempt) -> SingleWriter:
        return SingleWriter(task, attempt)


class Bench:
    """One pipeline into one sqlite target, a batch at a time."""

    def __init__(self, where: Path, on_error: str) -> None:
        self.target = str(where / "target.db")
        self.maker = LogMaker(where / "log")
        self.letters = Letters()
        config = Config.model_validate(
            {
                "source": {"url": "postgresql://localhost/nowhere"},
                "log": str(where / "log"),
                "pipelines": {
                    "p": {"sink": {"type": "files", "path": str(where / "out")}, "on_error": on_error}
                },
            }
        )
        self.pipeline = cast(
            Any, Pipeline("p", config, where / "scratch", lambda: pytest.fail("no Spark here"))
        )
        self.sink = SingleSink(self.target)
        self.sink.open(Position(LINEAGE, 1, Lsn(START)))
        self.pipeline._sink = self.sink
        self.pipeline._state = self.pipeline._progress = self.letters

    def deliver(self, *, attempt: int = 0) -> BatchReport:
        """What is new, by a query that begins now: it is told of the letters there are."""
        spec = WorkSpec(
            pipeline="p",
            log=self.maker.log.path,
            sink="files",
            task=self.sink.task(),
            parked=tuple(self.letters.parked()),
            plan=Plan.SINGLE,
            stored=tuple((str(lsn), seq, old) for lsn, seq, old in self.letters.behind()),
        )
        self.pipeline._parked = frozenset(self.letters.parked())
        report = BatchReport([work.run(WorkSpec.from_json(spec.to_json()), self._share(), attempt)])
        again = BatchReport.collect([one.to_json() for one in report.reports])
        self.pipeline._commit(again)
        return again

    def _share(self) -> Share:
        start = self.sink.flush()
        refs = list(self.maker.log.chunks(start))
        return shares(start, refs[-1].end, refs, 1)[0]

    def rows(self) -> int:
        with connect(self.target) as database:
            return int(database.execute("SELECT count(*) FROM changes").fetchone()[0])


@pytest.fixture
def single(monkeypatch: pytest.MonkeyPatch) -> None:
    files = SINKS["files"]
    monkeypatch.setitem(cast(dict[str, Any], SINKS), "files", _Single(files.settings, files.module))


@pytest.mark.usefixtures("single")
def test_a_rejected_change_is_not_passed_where_the_pipeline_stops_at_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "stop")
    bench.maker.append(2)
    bench.maker.append(1, note="x" * LONGEST)
    with pytest.raises(RunnelError, match="too long"):
        bench.deliver()
    assert bench.sink.flush() == START
    assert bench.rows() == 0


@pytest.mark.usefixtures("single")
def test_letters_are_stored_before_the_task_commits_what_passes_them(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "dead_letter")
    bench.maker.append(2)
    end = bench.maker.append(1, note="x" * LONGEST)
    with pytest.raises(Rerun):
        bench.deliver()
    assert bench.letters.calls == ["letters"]
    assert (bench.sink.flush(), bench.rows()) == (START, 0)
    bench.letters.calls.clear()
    report = bench.deliver()
    assert [letter.key for letter in report.letters] == ['{"id":"2-0"}']
    assert (bench.sink.flush(), bench.rows()) == (end, 2)
    assert bench.letters.calls == ["letters", f"committed {end}", "position"]


@pytest.mark.usefixtures("single")
def test_a_batch_with_a_new_change_of_a_parked_key_commits_nothing_until_its_letter_is_stored(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, "dead_letter")
    bench.letters.parked = lambda: [("public.orders", '{"id":"1-0"}')]  # type: ignore[method-assign]
    end = bench.maker.append(3)
    with pytest.raises(Rerun):
        bench.deliver()
    assert bench.letters.calls == ["letters"]
    assert (bench.sink.flush(), bench.rows()) == (START, 0)
    bench.deliver()
    assert (bench.sink.flush(), bench.rows()) == (end, 2)


def test_a_letter_is_stored_again_if_only_now_it_is_known_which_key_it_moves_its_row_from() -> None:
    letter = Reject(Lsn(256), 1, "public.t", "2", "{}", "too long", old_key="1")

    def may_finish(*stored: tuple[str, int, str | None]) -> bool:
        spec = WorkSpec("p", "/log", "postgres", {}, plan=Plan.SINGLE, stored=stored)
        return spec.may_finish([], [letter])

    assert not may_finish()
    assert not may_finish(("0/100", 1, None))
    assert may_finish(("0/100", 1, "1"))
