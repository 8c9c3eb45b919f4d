"""A pipeline's query and its change log, without Spark or a server."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from logs import LINEAGE
from runnel.config.models import Config
from runnel.postgres.lsn import Lsn
from runnel.progress.position import Position
from runnel.sinks.registry import SINKS, SinkContext
from runnel.spark import pipeline as module
from runnel.spark.work import WorkSpec


def test_planner_and_tasks_open_the_log_with_the_options_of_its_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "mock://bucket/log?endpoint_override=localhost:9000"
    files = {"type": "files", "path": str(tmp_path / "out")}
    config = Config.model_validate(
        {"source": {"url": "postgresql://h/d"}, "log": url, "pipelines": {"p": {"sink": files}}}
    )
    specs: list[WorkSpec] = []
    monkeypatch.setattr(module, "start", lambda _, spec, *__: specs.append(spec))
    spark: Any = object()
    some = module.Pipeline("p", config, tmp_path / "scratch", lambda: spark)
    sink = SINKS["files"].sink(config.pipelines["p"].sink, SinkContext("p", ""))
    some._start_query(Position(LINEAGE, 1, Lsn(0)), sink, [])
    assert [spec.log for spec in specs] == [url]


def test_a_batch_in_which_nothing_is_new_commits_nothing_and_is_no_trouble(tmp_path: Path) -> None:
    files = {"type": "files", "path": str(tmp_path / "out")}
    config = Config.model_validate(
        {
            "source": {"url": "postgresql://h/d"},
            "log": str(tmp_path / "log"),
            "pipelines": {"p": {"sink": files}},
        }
    )
    some: Any = module.Pipeline("p", config, tmp_path / "scratch", lambda: pytest.fail("no Spark here"))
    some._state = some._sink = object()  # whoever is asked for anything fails
    some._deliver(some._life, SimpleNamespace(collect=list))
    assert some._failure is None
    assert not some._wake.is_set()
