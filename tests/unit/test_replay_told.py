"""What `runnel replay` says it will do to the target."""

from __future__ import annotations

import pytest

from runnel.cli.replay import _told
from runnel.postgres.lsn import Lsn


@pytest.mark.parametrize(
    ("sink", "where"), [("files", "behind what is in the files"), ("stdout", "in its target")]
)
def test_a_replay_says_that_changes_will_stand_a_second_time(sink: str, where: str) -> None:
    assert _told("copy", Lsn(16), sink) == (
        "pipeline copy delivers again from 0/10 on, at its next start:"
        f" what it had delivered from there on then stands {where} a second time"
    )
