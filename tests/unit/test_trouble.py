"""What Spark says in two languages becomes one sentence."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from runnel.errors import Kind, Refused, RunnelError, Transient
from runnel.spark.trouble import as_error, told_by_spark

SCRATCH = Path("/scratch")
ABORTED = """An error occurred while calling o122.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 2.0 failed 4 times, \
most recent failure: Lost task 0.3 in stage 2.0 (TID 12) (localhost executor driver): {first}
\tat java.base/java.io.ObjectInputStream.readObject0(ObjectInputStream.java:1756)
\tat org.apache.spark.scheduler.Task.run(Task.scala:147)

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.handleTaskSetFailed(DAGScheduler.scala:1237)
Caused by: {first}
\tat java.base/java.lang.Thread.run(Thread.java:840)
{more}"""

WRAPPED = """[STREAM_FAILED] Query [id = 1] terminated with exception: {first}
During handling of the above exception, another exception occurred:

pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed
\tat org.apache.spark.sql.execution.python.PythonStreamingSourceRunner.latestOffset(Runner.scala:1)
"""


def test_a_worker_that_died_is_named() -> None:
    crashed = "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"
    text = ABORTED.format(first=crashed, more="Caused by: java.io.EOFException\n\t... 26 more")
    error = told_by_spark(text, SCRATCH)
    assert error.kind is Kind.TRANSIENT
    assert error.message.endswith("SparkException: Python worker exited unexpectedly (crashed)")


def test_a_cause_without_words_is_named_by_its_class() -> None:
    error = told_by_spark(ABORTED.format(first="java.io.OptionalDataException", more=""), SCRATCH)
    assert error.message.endswith("OptionalDataException")
    assert "o122" not in error.message


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (Refused("the log /l is broken: x is missing", hint="restore it"), Kind.REFUSED),
        (Transient("/l: no space left", hint="make room"), Kind.TRANSIENT),
        (RunnelError("public.t: that is no table", hint="name another"), Kind.FAILED),
    ],
)
def test_our_own_error_comes_back_with_its_way_out(raised: RunnelError, kind: Kind) -> None:
    python = "".join(traceback.format_exception(raised))
    first = f"org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n{python}"
    for text in (
        ABORTED.format(first=first, more=""),
        f"[STREAM_FAILED] Query ended: {first}\n\tat a.B.c(D.java)",
    ):
        error = told_by_spark(text, SCRATCH)
        assert (error.message, error.hint, error.kind) == (raised.message, raised.hint, kind)


def test_an_end_without_a_word_is_told_too() -> None:
    assert told_by_spark("", SCRATCH).kind is Kind.TRANSIENT


def test_a_full_disk_is_named_with_its_directory() -> None:
    full = "org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device"
    error = told_by_spark(ABORTED.format(first=full, more=""), SCRATCH)
    assert "/scratch" in error.message
    assert "space" in error.hint


@pytest.mark.parametrize("caught", [OSError(28, "No space"), ConnectionError("gone"), KeyError("x")])
def test_what_nobody_foresaw_says_that_it_is_tried_again(caught: Exception) -> None:
    error = as_error(caught, SCRATCH)
    assert error.kind is Kind.TRANSIENT
    assert "tried again" in error.hint
