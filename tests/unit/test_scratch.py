"""Where a driver's scratch is made when the log is no local directory."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from runnel.errors import Refused
from runnel.spark import scratch as module
from runnel.spark.scratch import scratch_directory

REMOTE = "s3://bucket/log"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path / f"runnel-spark-{os.getuid()}"


def test_what_lies_where_all_may_write_is_ours_alone(home: Path) -> None:
    for _ in range(2):
        with scratch_directory(REMOTE) as own:
            assert own.parent == home
            assert stat.S_IMODE(home.stat().st_mode) == 0o700


def test_a_directory_that_others_may_enter_is_refused_with_its_remedy(home: Path) -> None:
    home.mkdir()
    home.chmod(0o750)
    with (
        pytest.raises(Refused, match=f"{home} is not a directory of ours alone") as caught,
        scratch_directory(REMOTE),
    ):
        pass
    assert caught.value.hint == f"chmod 700 {home}"


def test_somebody_elses_directory_or_a_link_is_refused(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    home.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Refused), scratch_directory(REMOTE):
        pass
    home.unlink()
    home.mkdir(mode=0o700)
    monkeypatch.setattr(module, "_home", lambda _: home)
    mine = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    with pytest.raises(Refused, match=f"owner {mine}") as caught, scratch_directory(REMOTE):
        pass
    assert f"remove {home}" in caught.value.hint
