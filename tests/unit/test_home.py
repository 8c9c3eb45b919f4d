"""The Spark of a local session: what its directory holds, and that nothing depends on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from runnel.spark import home
from runnel.spark.session import session_settings


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    return tmp_path


def test_it_has_all_of_the_installed_spark_but_the_zipped_python() -> None:
    found = home.spark_home()
    assert found is not None
    assert (found / "bin" / "spark-submit").exists()
    assert (found / "jars").is_dir()
    assert not (found / "python").exists()
    assert home.spark_home() == found


def test_defaults_that_a_user_writes_later_are_read() -> None:
    found = home.spark_home()
    assert found is not None
    installed = (found / "jars").resolve().parent
    assert (found / "conf").readlink() == installed / "conf"


def test_a_directory_that_others_may_write_to_is_not_trusted(cache: Path) -> None:
    found = home.spark_home()
    assert found is not None
    found.parent.chmod(0o777)
    assert home.spark_home() is None
    assert home.archive() is None
    found.parent.chmod(0o700)
    (cache / "runnel").chmod(0o775)
    assert home.spark_home() is None


def test_another_java_has_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = home.spark_home()
    other = tmp_path / "jdk"
    (other / "bin").mkdir(parents=True)
    (other / "lib").mkdir()
    (other / "lib" / "modules").write_text("classes")
    (other / "bin" / "java").write_text("#!/bin/sh\n")
    (other / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(other))
    after = home.spark_home()
    assert after is not None
    assert after != before


def test_a_spark_of_the_users_own_is_left_to_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert home.spark_home() is None
    assert home.archive() is None


def test_a_cache_that_cannot_be_written_to_is_done_without(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache / "file"))
    assert home.spark_home() is None


def test_the_class_archive_is_used_once_it_is_there(tmp_path: Path) -> None:
    def options() -> str:
        return session_settings("local[2]", {}, tmp_path)["spark.driver.extraJavaOptions"]

    assert "SharedArchiveFile" not in options()
    archive = home.archive()
    assert archive is not None
    archive.parent.mkdir(parents=True, mode=0o700)
    archive.write_bytes(b"")
    assert f"-XX:SharedArchiveFile={archive}" in options()
    assert "SharedArchiveFile" not in session_settings("spark://host:7077", {}, tmp_path)[
        "spark.driver.extraJavaOptions"
    ]  # fmt: skip
