"""`runnel dead-letters`: which pipeline is meant, and what a line of the list says."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runnel.cli.dead_letters import _cells, _known, _of
from runnel.errors import UsageError
from runnel.postgres.lsn import Lsn
from runnel.progress.letters import Letter

CONFIG = cast(Any, SimpleNamespace(pipelines={"events": None}))
STATE = cast(
    Any,
    SimpleNamespace(pipelines=lambda: {"events": None, "runnel": None}, letter_counts=lambda: {"old": 2}),
)


def test_an_unknown_pipeline_is_told_the_known_ones() -> None:
    with pytest.raises(UsageError, match="there is no pipeline 'evnts'") as caught:
        _known("evnts", CONFIG, STATE)
    assert caught.value.hint == "pipelines: events, runnel, old"


@pytest.mark.parametrize("name", [None, "events", "runnel", "old"])
def test_a_pipeline_is_known_by_configuration_state_or_letters(name: str | None) -> None:
    _known(name, CONFIG, STATE)


def test_an_empty_list_says_of_what() -> None:
    assert _of(None, None, None) == ""
    assert _of("events", "public.ordrs", None) == " of pipeline events, of table public.ordrs"


def test_a_line_says_when_and_what_was_done() -> None:
    stored = datetime(2026, 11, 18, 6, 43, tzinfo=UTC)
    change = '{"op":"update","schema":"public"}'
    letter = Letter("events", Lsn(16), 2, "public.t", None, None, change, "too long", stored)
    assert _cells(letter) == (
        "events", "2026-11-18 06:43:00Z", "0/10:2", "update", "public.t", "-", "too long",
    )  # fmt: skip
