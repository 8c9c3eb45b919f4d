"""The Spark session: settings for short micro-batches, a quiet JVM, nothing secret in sight.

What comes in: `master` and the `spark.*` settings of the configuration, and a scratch directory.
What goes out: a running session whose JVM writes to `scratch/spark.log` and never to our stdout
(which may be a sink). Settings travel in a properties file of mode 0600: given to the builder they
would stand on the JVM's command line, for every user of the machine to read.

What must hold: whatever the configuration says wins over what is recommended here; a task is tried
four times also in local mode (plain `local[N]` gives up at the first failure).
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import RunnelError, UsageError
from .home import archive, spark_home
from .trouble import cause

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ATTEMPTS = 4
"""Per task, in local mode."""

_LOCAL = re.compile(r"local(?:\[(\*|\d+)(?:\s*,\s*(\d+))?\])?")

_LOG4J = """\
status = off
appenders = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} %p %c{1}: %m%n%ex
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""

# Only for a JVM of our own on this machine; measured as one set: 150 MB and 3 s of start less.
_JVM_FLAGS = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=64m -Xss8m -XX:-UsePerfData"
)
_LAUNCHER_FLAGS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto"
"""Of the short JVM that puts the command line of the real one together."""

_OUTLIVE = (
    "spark.eventLog.enabled",
    "spark.extraListeners",
    "spark.plugins",
    "spark.sql.queryExecutionListeners",
    "spark.sql.streaming.streamingQueryListeners",
)
"""Settings by which a session has something to finish."""

_FILE_MANAGER = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


def is_local(master: str) -> bool:
    return _LOCAL.fullmatch(master) is not None


def cores(master: str) -> int:
    """Cores of a local master; 2 for a cluster, whose size only the cluster knows."""
    found = _LOCAL.fullmatch(master)
    if found is None:
        return 2
    if found[1] == "*":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(found[1] or 1)


def attempts(master: str, settings: Mapping[str, str]) -> int:
    """How often Spark tries a task before the batch fails."""
    found = _LOCAL.fullmatch(settings.get("spark.master", master))
    if found is not None:
        return int(found[2] or ATTEMPTS)
    return int(settings.get("spark.task.maxFailures", ATTEMPTS))


def session_settings(master: str, settings: Mapping[str, str], scratch: Path) -> dict[str, str]:
    """Every setting of the session: ours, overridden by the configuration's."""
    master = settings.get("spark.master", master)
    java_options = [
        f"-Dlog4j2.configurationFile={(scratch / 'log4j2.properties').as_uri()}",
        f"'-Djava.io.tmpdir={scratch / 'tmp'}'",  # what a killed JVM leaves behind goes with the scratch
    ]
    ours = {
        "spark.app.name": "runnel",
        "spark.master": master,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.eventLog.enabled": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": str(cores(master)),
        "spark.sql.streaming.pollingDelay": "5ms",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.streaming.minBatchesToRetain": "10",
        # Checkpoints are scratch on the driver's own disk, whatever the master.
        "spark.sql.streaming.checkpointFileManagerClass": _FILE_MANAGER,
        "spark.scheduler.mode": "FAIR",
        "spark.local.dir": str(scratch / "local"),
    }
    found = _LOCAL.fullmatch(master)
    if found is not None:
        ours["spark.master"] = f"local[{found[1] or 1},{found[2] or ATTEMPTS}]"
        ours["spark.driver.memory"] = "512m"
        java_options.insert(0, _JVM_FLAGS)
        classes = archive()
        if classes is not None and classes.exists():
            java_options.append(f"'-XX:SharedArchiveFile={classes}' -Xlog:cds=off -Xlog:cds+dynamic=off")
    else:
        ours["spark.submit.pyFiles"] = str(scratch / "runnel.zip")
    ours["spark.driver.extraJavaOptions"] = " ".join(java_options)
    for key, value in settings.items():
        if key == "spark.driver.extraJavaOptions":
            value = f"{ours[key]} {value}"  # noqa: PLW2901  ours first: the JVM takes the last of two
        if key != "spark.master":
            ours[key] = value
    return ours


def open_session(master: str, settings: Mapping[str, str], scratch: Path) -> SparkSession:
    """Start the JVM and the session. `scratch` is a directory of this process alone."""
    scratch.mkdir(parents=True, exist_ok=True)
    _require_java()
    (scratch / "log4j2.properties").write_text(_LOG4J)
    values = session_settings(master, settings, scratch)
    if "spark.submit.pyFiles" in values and not (scratch / "runnel.zip").exists():
        _zip_package(scratch / "runnel.zip")
    file = scratch / "spark.conf"
    file.touch(mode=0o600)
    file.write_text("".join(f"{key} {_escape(value)}\n" for key, value in values.items()))

    (scratch / "tmp").mkdir()
    own: dict[str, str] = {}
    if is_local(settings.get("spark.master", master)):
        os.environ["PYSPARK_PYTHON"] = sys.executable  # else tasks run whatever python3 is on PATH
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        own["SPARK_LAUNCHER_OPTS"] = _LAUNCHER_FLAGS
        linked = spark_home()
        if linked is not None:
            own["SPARK_HOME"] = str(linked)
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

    import pyspark
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    log = scratch / "spark.log"
    own["PYSPARK_SUBMIT_ARGS"] = f"--properties-file '{file}' --load-spark-defaults pyspark-shell"
    saved = {name: os.environ.get(name) for name in (*own, "RUNNEL_EVENTS_FD")}
    os.environ |= own
    os.environ.pop("RUNNEL_EVENTS_FD", None)  # our supervisor's descriptor is not the JVM's
    try:
        with log.open("ab") as output:
            gateway = launch_gateway(popen_kwargs={"stdout": output, "stderr": output})
        pyspark.SparkContext(gateway=gateway)
        session: SparkSession = SparkSession.builder.getOrCreate()
        return session
    except (PySparkException, Py4JError, OSError) as error:
        raise RunnelError(
            f"Spark did not start: {cause(str(error)) or last_line(log) or error}",
            hint=f"Runnel needs Java 17 or later, a master that can be reached (it is {master!r}) and valid"
            " settings under `spark`; --debug shows more",
        ) from error
    finally:
        for name, value in saved.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def close_session(session: SparkSession, scratch: Path) -> None:
    """The end of a session and its JVM. A local JVM of ours has nothing that outlives it, and what it has
    on disk goes with the scratch: an orderly end would only take a second longer. It gets one where the
    user's settings made it write elsewhere, or tell somebody of its end."""
    context = session.sparkContext
    jvm = context._gateway.proc
    conf = context.getConf()
    more = any(conf.get(name, "") not in ("", "false") for name in _OUTLIVE)
    elsewhere = "SPARK_LOCAL_DIRS" in os.environ or conf.get("spark.local.dir", "") != str(
        scratch / "local"
    )
    if jvm is not None and is_local(context.master) and not more and not elsewhere:
        jvm.kill()
        jvm.wait()
    else:
        session.stop()


def last_line(log: Path) -> str:
    """The last line a JVM wrote, for an error's sentence."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 4096))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if home and not (Path(home) / "bin" / "java").exists():
        raise UsageError(
            f"JAVA_HOME is {home}, but there is no bin/java in it",
            hint="point JAVA_HOME at a Java 17 or later, or unset it",
        )
    if not home and shutil.which("java") is None:
        raise UsageError(
            "Spark needs Java 17 or later, and there is no java on PATH",
            hint="install a JDK (Debian, Ubuntu: apt install openjdk-17-jre-headless) or set JAVA_HOME",
        )


def _escape(value: str) -> str:
    """For a Java properties file."""
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def _zip_package(target: Path) -> None:
    """Runnel itself for the executors of a cluster. The driver imports the installed one."""
    root = Path(__file__).resolve().parents[2]
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in ("runnel", "pyspark_runnel"):
            for path in sorted((root / package).rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    archive.write(path, path.relative_to(root))
