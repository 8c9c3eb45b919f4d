"""A place that cannot be made is told as what it is, and nothing waits for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from runnel.errors import Kind, RunnelError
from runnel.log.local import LocalStore
from runnel.sinks.files.place import LocalPlace


@pytest.mark.parametrize("below", ["", "/out", "/deep/out"])
def test_a_sinks_path_that_is_a_file_is_named(below: str, tmp_path: Path) -> None:
    file = tmp_path / "taken"
    file.write_text("")
    with pytest.raises(RunnelError) as caught:
        LocalPlace(f"{file}{below}").make()
    assert caught.value.kind is not Kind.TRANSIENT
    assert caught.value.message.endswith(f"{file} is a file")
    assert "give the sink a directory" in caught.value.hint


@pytest.mark.parametrize("below", ["taken", "taken/log"])
def test_a_log_that_cannot_be_made_is_not_waited_for(below: str, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(RunnelError) as caught:
        LocalStore(str(tmp_path / below)).prepare()
    assert caught.value.kind is not Kind.TRANSIENT
    assert caught.value.message.startswith(f"log.path {tmp_path / below} cannot be made: ")
    assert "set log.path" in caught.value.hint
    with pytest.raises(RunnelError, match=r"log.path /proc/nolog cannot be made"):
        LocalStore("/proc/nolog").prepare()
