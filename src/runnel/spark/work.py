"""One task: its chunks are read, decoded and written to the sink; a report of it comes out.

What must hold: a task never publishes under the staged plan, and under `single`, where `finish` commits,
never before every change that it leaves out is stored as a letter; a failed attempt, and one with
rejects, cleans up and finishes nothing; what a retry cannot mend (and the last attempt's failure,
whatever it is) is reported and not raised, so that the user reads one sentence and not a stack. Runs in
Spark's Python workers, but knows nothing of Spark.
"""

from __future__ import annotations

import gc
import time
import uuid
import zipimport
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ..changes.decode import decode
from ..errors import Kind, RunnelError
from ..log import open_log
from ..sinks.api import Attempt, Plan, Reject
from ..sinks.registry import SINKS
from .admission import Share
from .keyed import division
from .parked import Parked, named
from .receipts import TaskError, TaskReport
from .trouble import AGAIN

MANY_REJECTS = 1000
"""The batch is run again after rejects, or fails: there is no use in collecting them all."""

_mended = False


@dataclass(frozen=True, slots=True)
class WorkSpec:
    """What all tasks of a query need to know; JSON, without secrets."""

    pipeline: str
    log: str
    sink: str
    task: Mapping[str, Any]
    messages: bool = True
    parked: tuple[tuple[str, str | None], ...] = ()
    attempts: int = 1
    plan: Plan = Plan.STAGED
    stored: tuple[tuple[str, int, str | None], ...] = ()
    """(lsn, seq, old key) of the letters behind the position, for a plan whose tasks commit."""

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "log": self.log,
            "sink": self.sink,
            "task": dict(self.task),
            "messages": self.messages,
            "parked": [list(item) for item in self.parked],
            "attempts": self.attempts,
            "plan": self.plan.value,
            "stored": [list(item) for item in self.stored],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> WorkSpec:
        return cls(
            **{
                **value,
                "parked": tuple((table, key) for table, key in value["parked"]),
                "plan": Plan(value["plan"]),
                "stored": tuple((lsn, seq, old_key) for lsn, seq, old_key in value["stored"]),
            }
        )

    def may_finish(self, rejects: Sequence[Reject], letters: Sequence[Reject]) -> bool:
        """Whether nothing that the writer was not given would be passed without a record."""
        if rejects or self.plan is not Plan.SINGLE:
            return not rejects  # the driver stores letters before it commits
        stored = {(lsn, seq): old_key for lsn, seq, old_key in self.stored}
        names = [((str(letter.lsn), letter.seq), letter.old_key) for letter in letters]
        return all(name in stored and old_key in (None, stored[name]) for name, old_key in names)


def mend_worker(spec: WorkSpec) -> None:
    """Once per worker process. Spark runs a full `gc.collect()` after every task, and 4.1 also reads
    the directory of pyspark.zip again: 150 ms of CPU a task, most of it gone with these lines."""
    global _mended
    if _mended:
        return
    import pyspark

    import_module(SINKS[spec.sink].module)  # its libraries belong before the freeze
    if pyspark.__version__.startswith("4.1."):
        zipimport.zipimporter.invalidate_caches = lambda self: None  # type: ignore[method-assign]
    gc.collect()
    gc.freeze()
    _mended = True


def run(spec: WorkSpec, share: Share, attempt: int) -> TaskReport:
    """`attempt`: Spark's number of this attempt, from 0."""
    began = time.process_time()
    report = TaskReport(share.index, share.start, share.end, share.captured, share.bytes)
    try:
        _deliver(spec, share, report)
    except RunnelError as error:
        if error.kind is Kind.TRANSIENT and attempt + 1 < spec.attempts:
            raise
        report.error = TaskError(error.kind, error.message, error.hint)
    except Exception as error:  # a sink's own client may raise anything: Spark tries the task again
        if attempt + 1 < spec.attempts:
            raise
        where = f"{report.chunk or 'its writer'}, of {share.start} to {share.end}"
        message = f"a task failed at {where}: {type(error).__name__}: {' '.join(str(error).split())[:500]}"
        report.error = TaskError(Kind.TRANSIENT, message, AGAIN)
    report.cpu = time.process_time() - began
    return report


def _deliver(spec: WorkSpec, share: Share, report: TaskReport) -> None:
    log = open_log(spec.log)
    attempt = Attempt(share.start, share.end, share.index, uuid.uuid4().hex)
    writer = SINKS[spec.sink].writer(spec.task, attempt)
    parked = Parked(spec.parked) if spec.parked else None
    finished = False
    try:
        mine = division(log, share, messages=spec.messages) if share.of > 1 else None
        for name in share.chunks:
            report.chunk = name
            with closing(log.open(name)) as reader:
                header = reader.header
                report.first_time = report.first_time or header.first_time
                report.last_time = header.last_time or report.last_time
                for window in decode(reader, share.start, messages=spec.messages):
                    kept = window if mine is None else mine(window)
                    if parked is not None:
                        kept, letters = parked.divide(kept)
                        report.letters += letters
                    if not kept.changes:
                        continue
                    report.rejects += named(writer.write(kept), kept)
                    report.changes += kept.changes
            if len(report.rejects) > MANY_REJECTS:
                break
        report.withheld = not spec.may_finish(report.rejects, report.letters)
        if not report.withheld:
            report.payload = dict(writer.finish())
            finished = True
    finally:
        if not finished:
            writer.abort()
