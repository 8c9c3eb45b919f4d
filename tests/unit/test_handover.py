"""The resolved configuration reaches every child and leaves no file behind."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from runnel.config.models import Config
from runnel.supervisor.handover import hand_over

READ = """
import sys
from pathlib import Path
from runnel.config import load
print(load(Path(sys.argv[1]), environ={"RUNNEL_SOURCE_URL": "postgresql://other/x"}).source_url)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is a file")
def test_every_child_reads_the_same_configuration_and_no_file_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    url = "postgresql://me:pa${HOME}ss@db/shop"
    config = Config.model_validate({"source": {"url": url}})
    with hand_over(config) as given:
        assert list(tmp_path.iterdir()) == []
        assert stat.S_IMODE(given.path.stat().st_mode) == 0o600
        command = [sys.executable, "-c", READ, str(given.path)]
        for _ in range(2):  # the second is one that is started again
            read = subprocess.run(
                command, pass_fds=given.descriptors, capture_output=True, text=True, check=False
            )
            assert read.stdout.strip() == url, read.stderr
        stranger = subprocess.run(command, capture_output=True, check=False)
        assert stranger.returncode != 0
    held = {os.readlink(given.path)} if given.path.is_symlink() else set()
    assert not [name for name in held if "runnel-config" in name]
