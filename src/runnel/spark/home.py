"""The Spark of a local session: the installed one, by way of a directory in this user's cache.

What comes in: PySpark and Java as they are installed. What goes out: a value for SPARK_HOME, a JVM flag.

- `home/` links to everything of the installed Spark but its zipped copy of PySpark. Spark puts that one
  first on the path of each Python process that it starts, and each would compile it anew: five of them
  stand before the first batch.
- `classes.jsa` holds the classes of a session, parsed and proven once, some 150 MB. `make setup`, or
  `python -m runnel.spark.home`, makes it; without it a session starts two seconds later.

What must hold: a directory belongs to one Java and one PySpark, and is complete or not there. Where none
can be made, or the user has a Spark of their own (SPARK_HOME), a session starts as Spark itself would.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

ZIPPED = "python"
"""The folder of the installed Spark that is left out."""
CONF = "conf"
"""Spark reads its defaults there; linked also while it is not there, since a user may make it later."""
ARCHIVE = "classes.jsa"
PATIENCE = 120.0
"""Seconds for the batch, and for the JVM to write the archive."""


def spark_home() -> Path | None:
    """None: Spark shall look for itself."""
    installed = _installed()
    own = _directory(installed)
    if installed is None or own is None:
        return None
    home = own / "home"
    try:
        if not home.is_dir():
            _link(installed, home)
        return home if _ours(own.parent) and _ours(own) else None
    except OSError:
        return None


def archive() -> Path | None:
    """Where the JVM's class archive is, or would be."""
    own = _directory(_installed())
    return None if own is None or not _ours(own.parent) or not _ours(own) else own / ARCHIVE


def java() -> str | None:
    """The program that Spark will start."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which(str(Path(home) / "bin" / "java") if home else "java")


def _installed() -> Path | None:
    spec = find_spec("pyspark")
    if "SPARK_HOME" in os.environ or spec is None or spec.origin is None:
        return None
    return Path(spec.origin).resolve().parent


def _directory(installed: Path | None) -> Path | None:
    """One for each pair of PySpark and Java: both are recognized by files that every release changes."""
    program = java()
    if installed is None or program is None:
        return None
    try:
        classes = Path(program).resolve().parents[1] / "lib" / "modules"
        known = [
            f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}"
            for path in (classes, installed / "version.py")
        ]
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except (OSError, RuntimeError):  # no such files, or a user without a home
        return None
    name = hashlib.blake2b("\n".join(known).encode(), digest_size=8).hexdigest()
    return Path(cache) / "runnel" / f"spark-{name}"


def _ours(place: Path) -> bool:
    """Whether nobody else can put there what we would run."""
    try:
        found = place.lstat()
    except FileNotFoundError:
        return True
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def _link(installed: Path, home: Path) -> None:
    home.parent.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    home.parent.mkdir(exist_ok=True, mode=0o700)
    fresh = Path(tempfile.mkdtemp(dir=home.parent))
    try:
        for name in {entry.name for entry in installed.iterdir()} | {CONF}:
            if name not in (ZIPPED, "__pycache__"):
                (fresh / name).symlink_to(installed / name)
        with suppress(OSError):  # another process was faster
            fresh.rename(home)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)  # the links, where it was not renamed


def _forget_removed(cache: Path) -> None:
    """Directories whose PySpark is not installed any more."""
    for other in cache.glob("spark-*"):
        if not (other / "home" / "jars").exists():
            shutil.rmtree(other, ignore_errors=True)


def prepare() -> None:
    """Make the archive from the classes of a session that runs one batch of a pipeline."""
    from ..log import open_log
    from ..log.api import ChunkHeader, Lineage
    from ..postgres.lsn import Lsn
    from ..sinks.files.settings import FilesSettings
    from .driver import expect_broken_sockets
    from .query import start
    from .receipts import BatchReport
    from .session import open_session
    from .work import WorkSpec

    target = archive()
    if target is None or target.exists() or spark_home() is None:
        return
    _forget_removed(target.parents[1])
    with tempfile.TemporaryDirectory(prefix="runnel-") as name:
        scratch = Path(name)
        log = open_log(str(scratch / "log"))
        log.advance(ChunkHeader(Lineage("0", 1, "none"), 1, Lsn(1), Lsn(2)))
        fresh = scratch / ARCHIVE
        dump = {"spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={fresh}"}
        spark = open_session("local[2]", dump, scratch / "spark")
        expect_broken_sockets()
        settings = FilesSettings(path=str(scratch / "out")).model_dump(mode="json")
        spec = WorkSpec("none", log.path, "files", {"settings": settings, "stage": "none"})
        options = {"start": "0/1", "until": "0/2", "control": str(scratch)}
        done: list[BatchReport] = []
        query = start(
            spark, spec, options, (scratch / "checkpoint").as_uri(), "none",
            lambda frame: done.append(BatchReport.collect(row[0] for row in frame.collect())),
        )  # fmt: skip
        deadline = time.monotonic() + PATIENCE
        while query.isActive and not done and time.monotonic() < deadline:
            query.awaitTermination(0.1)
        query.stop()
        jvm = spark.sparkContext._gateway.proc
        spark.stop()
        jvm.stdin.close()  # its word to end by itself, which is when it writes
        try:
            jvm.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            jvm.kill()
            return
        if done and fresh.exists():
            _publish(fresh, target)


def _publish(made: Path, target: Path) -> None:
    there = target.with_suffix(f".{os.getpid()}")
    try:
        shutil.move(made, there)
        there.replace(target)
    except OSError:
        there.unlink(missing_ok=True)
        raise


if __name__ == "__main__":
    prepare()
