"""The pipeline process: one Spark session, a thread and a query per pipeline.

What comes in: the configuration, the names of the pipelines, an optional bound. What goes out: an
exit code for the supervisor: 0 all ended as asked, 1 try again, 3 there is no use in trying again.

What must hold: one pipeline's failure stops no other; a dead JVM ends the process at once (nothing
can be saved, everything can be repeated); SIGTERM and SIGINT let every running batch finish.
"""

from __future__ import annotations

import logging
import os
import signal
import socketserver
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from ..config.models import Config
from ..errors import UsageError
from ..events import emit, heard
from ..postgres.lsn import Lsn
from .pipeline import Outcome, Pipeline
from .scratch import scratch_directory
from .session import close_session, open_session
from .trouble import AGAIN as AGAIN_BY_ITSELF
from .trouble import JVM_ENDED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("runnel.pipeline")

LOOK = 0.2

DONE, AGAIN, REFUSED = 0, 1, 3


def run_pipelines(config: Config, names: Sequence[str], *, until: Lsn | None = None) -> int:
    """Run until every pipeline has ended, by a signal, the bound or a failure of its own."""
    unknown = [name for name in names if name not in config.pipelines]
    if unknown or not names:
        raise UsageError(
            f"there is no pipeline {unknown[0]!r}" if unknown else "no pipeline is configured",
            hint=f"pipelines: {', '.join(config.pipelines) or 'none'}",
        )
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    with scratch_directory(config.log.path) as scratch:
        session: Future[SparkSession] = Future()
        pipelines = [
            Pipeline(name, config, scratch / "pipelines" / name, session.result, until=until)
            for name in names
        ]
        runs = [_Run(pipeline) for pipeline in pipelines]
        try:
            spark = open_session(config.spark.master, config.spark.settings, scratch / "spark")
        except BaseException as error:
            session.set_exception(error)
            for run in runs:
                run.join()
            raise
        expect_broken_sockets()
        session.set_result(spark)
        _watch(runs, spark, stopping)
        close_session(spark, scratch / "spark")
    return _exit_code(runs, stopping.is_set())


class _Run(threading.Thread):
    """A pipeline in its own thread: Spark gives each thread its own scheduler pool."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(name=pipeline.name, daemon=True)
        self.pipeline = pipeline
        self.outcome: Outcome | None = None
        self.start()

    def run(self) -> None:
        self.outcome = self.pipeline.run()


def _watch(runs: Sequence[_Run], spark: SparkSession, stopping: threading.Event) -> None:
    jvm = spark.sparkContext._gateway.proc
    asked = False
    while any(run.is_alive() for run in runs):
        if stopping.is_set() and not asked:
            asked = True
            for run in runs:
                run.pipeline.stop()
        if jvm is not None and jvm.poll() is not None:
            for run in runs:
                emit("state", run.pipeline.name, state="retrying", error=JVM_ENDED, hint=AGAIN_BY_ITSELF)
            os._exit(AGAIN)
        if asked:
            time.sleep(LOOK / 4)
        else:
            stopping.wait(LOOK)


def _exit_code(runs: Sequence[_Run], stopped: bool) -> int:
    if any(run.outcome is None for run in runs):
        return AGAIN  # a thread died of a bug: its traceback is on stderr
    errors = [run.pipeline.error for run in runs if run.pipeline.error is not None]
    if not errors or stopped:
        return DONE
    if not heard():
        raise errors[0]
    return REFUSED


def expect_broken_sockets() -> None:
    """A killed JVM is told in one sentence (`_watch`): what PySpark and py4j say of their broken
    connections, with tracebacks, would stand beside it."""

    def quietly(server: Any, request: Any, client_address: Any) -> None:
        logger.debug("a connection of Spark's JVM broke", exc_info=True)

    setattr(socketserver.BaseServer, "handle_error", quietly)  # noqa: B010  mypy forbids the plain form
    if not logger.isEnabledFor(logging.DEBUG):
        for handler in logging.getLogger().handlers:
            handler.addFilter(lambda record: "py4j" not in record.pathname)
