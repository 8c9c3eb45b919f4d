"""What a task tells of its failure, without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from logs import LINEAGE, START, LogMaker
from runnel.changes.block import Window
from runnel.errors import Kind
from runnel.postgres.lsn import Lsn
from runnel.sinks.api import Attempt, Reject
from runnel.sinks.registry import SINKS, SinkType
from runnel.spark import work
from runnel.spark.admission import shares
from runnel.spark.trouble import AGAIN
from runnel.spark.work import WorkSpec


def test_an_error_that_nobody_foresaw_names_chunk_and_stretch_and_what_happens_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = LogMaker(tmp_path / "log", lineage=LINEAGE)
    end = maker.append(1)
    refs = list(maker.log.chunks(Lsn(START)))
    share = shares(Lsn(START), end, refs, 1)[0]

    class Broken:
        def write(self, window: Window) -> Sequence[Reject]:
            raise ValueError("no such\n topic")

        def finish(self) -> Mapping[str, Any]:
            return {}

        def abort(self) -> None: ...

    class Type(SinkType):
        def writer(self, task: Mapping[str, Any], attempt: Attempt) -> Broken:
            return Broken()

    monkeypatch.setitem(SINKS, "files", Type(SINKS["files"].settings, SINKS["files"].module))
    spec = WorkSpec("p", maker.log.path, "files", {}, attempts=2)
    with pytest.raises(ValueError, match="no such"):
        work.run(spec, share, 0)
    report = work.run(spec, share, 1)
    assert report.error is not None
    assert report.error.kind is Kind.TRANSIENT
    assert report.error.hint == AGAIN
    assert report.error.message == (
        f"a task failed at {refs[0].name}, of {Lsn(START)} to {end}: ValueError: no such topic"
    )
