"""Dead letters once more: which belong to one row, and their changes from the log."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runnel.errors import RunnelError
from runnel.log import open_log
from runnel.marshal.json import lines
from runnel.postgres.lsn import Lsn
from runnel.progress.letters import Letter
from runnel.redelivery import Redelivery, Stuck, choose, windows
from runnel.sinks.files.text import JsonLines, reject
from runnel.sinks.stdout.settings import StdoutSettings

STORED = Path(__file__).parents[1] / "fixtures" / "log-v1"


def letter(lsn: int, key: str | None, old: str | None = None, table: str = "public.t") -> Letter:
    return Letter("copy", Lsn(lsn), 0, table, key, old, "{}", "why", datetime.now(UTC))


MOVED = [
    letter(1, "1"),
    letter(2, "5", old="1"),
    letter(3, "6"),
    letter(4, "7", old="5"),
    letter(5, "7"),
    letter(6, "7", table="public.other"),
]


@pytest.mark.parametrize(
    ("table", "key", "meant"),
    [
        (None, None, [1, 2, 3, 4, 5, 6]),
        ("public.t", "1", [1, 2, 4, 5]),
        ("public.t", "7", [1, 2, 4, 5]),
        (None, "7", [1, 2, 4, 5, 6]),
        (None, "6", [3]),
        ("public.t", "8", []),
    ],
)
def test_a_key_means_its_row_under_all_the_keys_it_had(
    table: str | None, key: str | None, meant: list[int]
) -> None:
    assert [one.lsn for one in choose(MOVED, table, key)] == meant


def test_behind_a_stuck_letter_its_row_stays_and_others_do_not() -> None:
    stuck = Stuck()
    held = []
    for one in MOVED:
        if one.lsn == 2 or stuck.holds(one):
            stuck.add(one)
            held.append(one.lsn)
    assert held == [2, 4, 5]


def test_a_letter_without_a_key_is_about_all_of_its_table() -> None:
    stuck = Stuck()
    assert not stuck.holds(letter(1, None))
    stuck.add(letter(1, "1"))
    assert stuck.holds(letter(2, None))
    stuck.add(letter(2, None))
    assert stuck.holds(letter(3, "9"))
    assert not stuck.holds(letter(3, "9", table="public.other"))


@pytest.mark.parametrize("every", [1, 3, 17, 100])
def test_changes_come_from_the_log_one_by_one_wherever_they_stand(every: int) -> None:
    wanted = (STORED / "changes.jsonl").read_bytes().splitlines(keepends=True)[::every]
    names = [(one.lsn, one.seq) for one in (reject(line, "") for line in wanted)]
    log = open_log(str(STORED / "log"))
    assert b"".join(bytes(lines(window).data) for window in windows(log, names)) == b"".join(wanted)


@pytest.mark.parametrize("name", [(1, 0), (1 << 60, 0), (None, 10**6)])
def test_a_change_that_the_log_does_not_hold_is_an_error_that_names_the_setting(
    name: tuple[int | None, int],
) -> None:
    log = open_log(str(STORED / "log"))
    first = reject((STORED / "changes.jsonl").read_bytes().splitlines()[0], "").lsn
    lsn = first if name[0] is None else Lsn(name[0])
    with pytest.raises(RunnelError) as caught:
        list(windows(log, [(lsn, name[1])]))
    assert "log.retain" in caught.value.hint


def test_the_text_of_a_letter_goes_to_the_folder_its_change_would_have_gone_to() -> None:
    texts = (STORED / "changes.jsonl").read_bytes().splitlines()
    rejects = [reject(text, "") for text in texts]
    left = list(rejects)
    again: list[Any] = []
    portions = list(JsonLines(by_table=True, longest=None).again(left, again))
    assert b"".join(bytes(p.data) for p in portions) == b"".join(text + b"\n" for text in texts)
    assert {"messages", "public.users"} < {p.folder for p in portions}
    assert not again
    short = list(JsonLines(by_table=False, longest=200).again(left, again))
    assert len(short) + len(again) == len(left)
    assert all("more than 200 allowed" in one.reason for one in again)


def test_letters_are_staged_where_the_pipeline_stages_its_batches() -> None:
    """There the half line that a killed pipeline left is noted, and there is a disk beside an object store."""
    state: Any = SimpleNamespace(is_fresh=lambda pipeline: True)
    log: Any = None
    redelivery = Redelivery(state, log, "p", StdoutSettings(), "/stages")
    assert redelivery._sink.task()["root"] == "/stages/p"
