"""What a pipeline does with a batch that holds letters, without Spark or a server."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from runnel.config.models import Config
from runnel.errors import Kind, RunnelError
from runnel.postgres.lsn import Lsn
from runnel.progress.letters import Key
from runnel.sinks.api import Reject
from runnel.spark.pipeline import Pipeline, Rerun
from runnel.spark.receipts import BatchReport, TaskReport


class Told:
    """State, sink and progress in one: notes in which order they are called."""

    def __init__(self, parked: Iterable[Key] = ()) -> None:
        self.calls: list[str] = []
        self.keys = list(parked)

    def parked(self, pipeline: str) -> list[Key]:
        return self.keys

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self.calls.append(name)


def letter(key: str, old_key: str | None = None) -> Reject:
    return Reject(Lsn(100), 0, "public.t", key, "{}", "too long", old_key)


def report(*, rejects: Iterable[Reject] = (), letters: Iterable[Reject] = ()) -> BatchReport:
    task = TaskReport(0, Lsn(50), Lsn(200), rejects=list(rejects), letters=list(letters))
    return BatchReport.collect([task.to_json()])


def pipeline(where: Path, told: Told, parked: Iterable[Key]) -> Any:
    config = Config.model_validate(
        {
            "source": {"url": "postgresql://localhost/nowhere"},
            "log": str(where / "log"),
            "pipelines": {
                "p": {"sink": {"type": "files", "path": str(where / "out")}, "on_error": "dead_letter"}
            },
        }
    )
    made: Any = Pipeline("p", config, where / "scratch", lambda: pytest.fail("no Spark here"))
    made._state = made._sink = made._progress = told
    made._parked = frozenset(parked)
    return made


def test_a_letter_under_a_key_the_query_does_not_know_starts_it_anew_behind_the_commit(
    tmp_path: Path,
) -> None:
    told = Told()
    some = pipeline(tmp_path, told, [("public.t", "1")])
    some._commit(report(letters=[letter("1")]))
    assert told.calls == ["store_letters", "commit", "committed", "store"]
    for unknown in (letter("2"), letter("1", old_key="2")):
        told.calls.clear()
        with pytest.raises(Rerun):
            some._commit(report(letters=[letter("1"), unknown]))
        assert told.calls == ["store_letters", "commit", "committed", "store"]


def test_a_reject_parks_its_key_before_anything_is_committed(tmp_path: Path) -> None:
    told = Told()
    with pytest.raises(Rerun):
        pipeline(tmp_path, told, [])._commit(report(rejects=[letter("1")]))
    assert told.calls == ["store_letters"]


@pytest.mark.parametrize("parked", [("public.t", "1"), ("public.t", None)])
def test_a_reject_of_what_is_parked_already_fails_instead_of_running_for_ever(
    tmp_path: Path, parked: Key
) -> None:
    told = Told()
    with pytest.raises(RunnelError, match=r"public\.t key 1 at 0/64 is parked") as caught:
        pipeline(tmp_path, told, [parked])._commit(report(rejects=[letter("1")]))
    assert caught.value.kind is Kind.DATA
    assert told.calls == []


def test_keys_that_were_freed_are_noticed(tmp_path: Path) -> None:
    told = Told([("public.t", "1"), ("public.t", "2")])
    some = pipeline(tmp_path, told, told.keys)
    assert not some._freed()
    told.keys.pop()
    assert some._freed()
