"""One pipeline in the driver: a streaming query whose batches are committed to the sink, and restarted.

What comes in: the change log, from the position that the sink (else the state) holds. What goes out:
batches in the sink, the position in the state, events for the supervisor.

What must hold:
- every start of a query begins at the authority's position with a fresh checkpoint directory;
- the order of a batch is: letters stored, sink committed, position stored. What dies in between is
  repeated, and the sink's compare-and-set on the batch's start makes the repetition harmless. Where the
  task commits (`single`), it finishes nothing until the letters are stored: the batch runs again;
- what may heal is retried with back-off under the state `retrying`; what cannot makes this pipeline
  `failed` and leaves the others alone;
- a stop lets the running batch finish: `q.stop()` would interrupt it.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from ..config.models import Config
from ..errors import Kind, Refused, RunnelError, Transient
from ..events import emit, heard
from ..failpoints import failpoint
from ..log import open_log
from ..postgres.lsn import Lsn
from ..progress.letters import Key, Passed
from ..progress.owners import AlreadyRunning
from ..progress.position import Position
from ..progress.state import CAPTURE, State
from ..sinks.api import Batch, Plan, Reject, Sink
from ..sinks.opening import open_sink
from ..sinks.registry import SINKS, SinkContext
from . import session as spark_session
from .control import Control
from .parked import covering, covers
from .progress import Progress
from .query import options, start, tasks
from .receipts import BatchReport
from .standing import check_log
from .trouble import as_error, query_error, undeliverable
from .work import WorkSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

logger = logging.getLogger("runnel.pipeline")

LOOK = 0.25
"""Seconds between two looks at the query, the bound and a wish to stop."""
TICK = 1.0
ONCE_PATIENCE = 60.0
"""`--once` retries this long without progress."""
LOST_OWNER_PATIENCE = 90.0
"""After our own connection was cut the server may hold our lock this long."""


DEFECT = "the sink calls its key otherwise than the log does: please report it"


class Outcome(StrEnum):
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


class Rerun(Exception):
    """Other keys are parked than the query knows: a new one, at once. If nothing of the batch was
    committed, it is the same batch again."""


class Pipeline:
    """Runs in a thread of its own (`run`); `stop` may be called from any other."""

    def __init__(
        self,
        name: str,
        config: Config,
        scratch: Path,
        spark: Callable[[], SparkSession],
        *,
        until: Lsn | None = None,
    ) -> None:
        self.name = name
        self.error: RunnelError | None = None
        self._config = config
        self._settings = config.pipelines[name]
        self._scratch = scratch
        self._control = Control(scratch)
        self._spark = spark
        self._until = until
        self._log = open_log(config.log.path)
        self._state: State | None = None
        self._lost_owner_at: float | None = None
        self._sink: Sink | None = None
        self._progress = Progress(name, self._log)
        self._lock = threading.Lock()
        """Held while a batch runs, so that ticks come between batches."""
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._failure: BaseException | None = None
        self._life = 0
        self._parked: frozenset[Key] = frozenset()
        """What the running query leaves out: it is told when it starts."""

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()

    # the life of the pipeline

    def run(self) -> Outcome:
        pause = 0.0
        failing_since: float | None = None
        while not self._stop.is_set():
            before = self._progress.accepted
            try:
                return self._attempt()
            except Rerun:
                continue
            except Exception as caught:  # noqa: BLE001  whatever it is, it is told and classified here
                error = as_error(caught, self._scratch)
                lost = isinstance(caught, psycopg.OperationalError)
            finally:
                self._close_sink()
            if self._progress.accepted > before:
                pause, failing_since = 0.0, None
            failing_since = failing_since or time.monotonic()
            out_of_time = self._until is not None and time.monotonic() - failing_since > ONCE_PATIENCE
            if error.kind is not Kind.TRANSIENT or out_of_time:
                return self._fail(error)
            pause = min(30.0, max(0.5, pause * 2))
            self._tell("retrying", error)
            if lost:
                self._forget_state()
            self._stop.wait(pause)
        self._tell("stopped")
        return Outcome.STOPPED

    def _attempt(self) -> Outcome:
        """One life of the query, from claiming the pipeline to a stop, the bound, or an error."""
        self._failure = None
        self._wake.clear()
        self._tell("starting")
        state, recorded = self._claim()
        sink_type = SINKS[self._settings.sink.type]
        stage = f"{self._config.stages}/{self.name}"
        context = SinkContext(self.name, stage, begun=not state.is_fresh(self.name))
        self._sink = sink = sink_type.sink(self._settings.sink, context)
        position = open_sink(sink, self.name, recorded, state)
        holds_position = sink.capabilities.holds_position
        self._progress.begin(position, recorded.lsn, holds_position=holds_position, clock=state.clock())
        check_log(self._log, self.name, position)
        if self._reached() or self._stop.is_set():
            return self._finish()
        single = sink.capabilities.plan is Plan.SINGLE
        stored = state.letters_behind(self.name, position.lsn) if single else []
        query = self._start_query(position, sink, state.parked(self.name), stored)
        try:
            self._watch(query)
            self._quiesce(query)
            return self._finish()
        finally:
            query.stop()

    def _watch(self, query: StreamingQuery) -> None:
        """Returns when the pipeline shall end; raises what made the query fail."""
        next_tick = 0.0
        paused = False
        while True:
            self._wake.wait(LOOK)
            self._wake.clear()
            if self._failure is not None:
                raise self._failure
            if self._stop.is_set() or self._reached():
                return
            if not query.isActive:
                raise query_error(query, self._scratch)
            now = time.monotonic()
            if now >= next_tick:
                next_tick = now + TICK
                paused = self._tick(paused)
                if self._freed():
                    self._quiesce(query)
                    raise Rerun

    def _tick(self, paused: bool) -> bool:
        """About once a second, between batches: pause and resume, the sink's own clock, what is shown."""
        state, sink = self._state, self._sink
        assert state is not None  # noqa: S101
        assert sink is not None  # noqa: S101
        if self._lock.acquire(timeout=TICK / 2):
            try:
                self._progress.durable = sink.tick()
                self._progress.store(state)
            finally:
                self._lock.release()
        row = state.pipelines().get(self.name)
        if row is None:
            raise Refused(
                f"pipeline {self.name!r} was removed while it ran",
                hint="`runnel init` registers it again, at the source's present position",
            )
        if row.paused and self._until is not None:
            raise Refused(
                f"pipeline {self.name!r} is paused: it would never reach {self._until}",
                hint=f"runnel resume {self.name}",
            )
        if row.paused and not paused:
            self._control.hold()
        elif paused and not row.paused:
            self._control.release()
        self._progress.observe(lambda: state.owner(CAPTURE) is not None)
        if row.paused:
            self._tell("paused")
        else:
            self._tell(self._progress.state(), why=self._progress.why)
        self._progress.show()
        return row.paused

    def _freed(self) -> bool:
        """Whether letters were dropped: keys that the query leaves out are parked no more."""
        assert self._state is not None  # noqa: S101
        return bool(self._parked) and covering(self._state.parked(self.name)) != self._parked

    def _quiesce(self, query: StreamingQuery) -> None:
        """Let nothing more be offered, and wait until what was offered is committed."""
        self._control.hold()
        while (
            query.isActive and self._failure is None and self._control.offered() > self._progress.accepted
        ):
            time.sleep(0.02)
        with self._lock:  # its last steps
            if self._failure is not None:
                raise self._failure

    def _finish(self) -> Outcome:
        """Everything accepted becomes durable, readable and recorded."""
        state, sink = self._state, self._sink
        assert state is not None  # noqa: S101
        assert sink is not None  # noqa: S101
        with self._lock:
            self._progress.durable = sink.flush()
            self._progress.store(state, stopping=True)
            sink.close()
            self._sink = None
        done = self._reached()
        self._progress.observe()
        self._progress.show()
        self._tell("stopped")
        self._forget_state()
        if done:
            emit("done", self.name, lsn=str(self._progress.durable))
        return Outcome.DONE if done else Outcome.STOPPED

    def _reached(self) -> bool:
        return self._until is not None and self._progress.accepted >= self._until

    # the query

    def _start_query(
        self, position: Position, sink: Sink, parked: list[Key], stored: Sequence[Passed] = ()
    ) -> StreamingQuery:
        spark = self._spark()
        self._parked = covering(parked)
        plan = sink.capabilities.plan
        spec = WorkSpec(
            pipeline=self.name,
            log=self._config.log.path,
            sink=self._settings.sink.type,
            task=sink.task(),
            messages=self._config.source.messages,
            parked=tuple(parked),
            attempts=spark_session.attempts(self._config.spark.master, self._config.spark.settings),
            plan=plan,
            stored=tuple((str(lsn), seq, old_key) for lsn, seq, old_key in stored),
        )
        checkpoint = self._fresh_checkpoint()
        life = self._life
        return start(
            spark,
            spec,
            options(
                self._settings.batch,
                position.lsn,
                tasks=tasks(spark, self._config.spark, self._settings.tasks, plan, parked=bool(parked)),
                parked=bool(parked),
                control=self._control.directory,
                until=self._until,
            ),
            checkpoint,
            f"{self.name}-{life}",
            lambda frame: self._deliver(life, frame),
        )

    def _fresh_checkpoint(self) -> str:
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir(parents=True)
        self._life += 1
        return (self._scratch / f"checkpoint-{self._life}").as_uri()

    def _deliver(self, life: int, frame: DataFrame) -> None:
        """foreachBatch. Touches the frame once: every action would run the tasks, so the writes, again."""
        try:
            with self._lock:
                if life != self._life or self._sink is None:
                    raise Transient(f"a batch of an earlier query of {self.name!r} came too late")
                report = BatchReport.collect(row[0] for row in frame.collect())
                if report.reports:  # else nothing was new: the first batch of a query runs all the same
                    self._commit(report)
        except BaseException as error:
            if life == self._life:
                self._failure = error
                self._wake.set()
            raise
        if self._reached():
            self._wake.set()

    def _commit(self, report: BatchReport) -> None:
        state, sink = self._state, self._sink
        assert state is not None  # noqa: S101
        assert sink is not None  # noqa: S101
        if report.error is not None:
            raise report.error.error()
        if report.rejects:
            self._park(state, report.rejects)
        if report.letters:
            state.store_letters(self.name, report.letters, self._settings.max_dead_letters)
        if report.withheld:
            raise Rerun  # whose tasks know that they are stored
        batch = Batch(report.start, report.end, report.first_time, report.last_time)
        durable = sink.commit(batch, [task.receipt() for task in report.reports])
        failpoint("pipeline.delivered")
        self._progress.committed(report, durable)
        self._progress.store(state)
        if not all(covers(self._parked, letter) for letter in report.letters):
            raise Rerun  # a letter moves a row to or away from a key that the next batch must know

    def _park(self, state: State, rejects: list[Reject]) -> None:
        """Nothing of this batch was published yet: it either fails here or runs again."""
        if self._settings.on_error == "stop":
            hint = "mend the cause and start again, or set on_error: dead_letter to go on without it"
            raise undeliverable(rejects[0], "cannot be delivered", hint)
        for one in rejects:  # once more would be for ever
            if covers(self._parked, one):
                raise undeliverable(one, "is parked and came to the sink", DEFECT)
        state.store_letters(self.name, rejects, self._settings.max_dead_letters)
        raise Rerun

    # state, log and words

    def _claim(self) -> tuple[State, Position]:
        """Every attempt is an owner of its own: what an earlier one left running can commit no more."""
        if self._state is None:
            self._state = State.connect(self._config.state_url, self._config.source.name)
        try:
            position = self._state.claim_pipeline(self.name)
        except AlreadyRunning as error:
            since = self._lost_owner_at
            if since is not None and time.monotonic() - since < LOST_OWNER_PATIENCE:
                raise Transient(error.message, hint=error.hint) from error
            raise
        self._lost_owner_at = None
        return self._state, position

    def _forget_state(self) -> None:
        if self._state is not None:
            self._state.close()
            self._state = None
            self._lost_owner_at = time.monotonic()

    def _close_sink(self) -> None:
        if self._sink is not None:
            with self._lock:
                self._sink.close()
                self._sink = None

    def _fail(self, error: RunnelError) -> Outcome:
        self.error = error
        self._tell("failed", error)
        return Outcome.FAILED  # still its owner: `status` says failed as long as this driver lives

    def _tell(self, state: str, error: RunnelError | None = None, *, why: str | None = None) -> None:
        """To the supervisor, and to the state for `status` (if it can be reached)."""
        fields: dict[str, Any] = {"state": state} if why is None else {"state": state, "why": why}
        if error is not None:
            fields |= {"error": error.message, "hint": error.hint}
        if not self._progress.changed_state(fields):
            return
        emit("state", self.name, **fields)
        if not heard():
            logger.log(
                logging.WARNING if error is not None else logging.INFO,
                "%s is %s%s",
                self.name,
                state,
                f": {error.message if error is not None else why}" if error is not None or why else "",
            )
        if self._state is not None:
            with suppress(psycopg.Error):  # who uses it next, or the next attempt, says what is wrong
                detail = None if why is None else {"why": why}
                message = None if error is None else error.message
                self._state.set_state(self.name, state, error=message, detail=detail)
