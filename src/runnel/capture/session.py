"""One life of capture: from owning the subscription to the loss of a connection, or a stop.

What comes in: the configuration and an order to stop. What goes out: chunks in the log, feedback to the
slot, states for `status`. Everything here is made anew after a loss: connections, ownership (a higher
epoch), the checks at start, and the cutter, from where the log ends.

What must hold: nothing is confirmed to the slot before it is recorded, nor while the publication is not
what it was; the stream is not read while the
log has no room, and the server is answered all the same (see stream.py).
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from .. import events
from ..config import Config
from ..errors import Refused, RunnelError, Transient
from ..failpoints import failpoint
from ..log.api import ChangeLog, ChunkHeader
from ..postgres import catalog
from ..postgres import connect as postgres
from ..postgres.connect import connect
from ..postgres.lsn import Lsn
from ..progress.records import Subscription
from ..progress.state import CAPTURE, State
from .acknowledgement import Carried, Holdings, carry, excess, holdings
from .cutter import Cutter
from .known import known_relations
from .publication import check_publication, read_publication
from .relations import Catalogue
from .retention import RetentionGuard
from .settling import read_rows
from .slot import read_slot
from .spool import Spools
from .start import Go, LogFacts, ServerFacts, SlotFacts, decide
from .stream import ReplicationStream
from .tables import TableKeeper
from .trouble import Unconfirmed

_log = logging.getLogger(__name__)

_PROGRESS = 1.0
"""Seconds between looks at the pipelines' positions."""
_SOURCE = 5.0
"""Seconds between looks at the slot from outside."""
_ADVANCE = 10.0
"""Seconds between idle advances: each one may make every pipeline run an empty batch."""
_SLOWER = 60
"""Times as long at most while a pipeline holds the slot back: each one is a file that frees nothing."""
_IDLE = 0.25
_LAST_WORD = 5.0
"""Seconds to wait at a stop until the slot shows what was confirmed."""


class Session:
    def __init__(self, config: Config, log: ChangeLog, stop: threading.Event) -> None:
        self.claimed = False
        self.streamed_since: float | None = None
        self._config = config
        self._log = log
        self._carried = Carried(log)
        self._stop = stop
        self._told = Lsn(0)
        """Highest keepalive: everything before it that concerns us has been received."""
        self._paused = False
        self._advanced = time.monotonic()
        self._pause = _ADVANCE
        self._progress_due = self._source_due = 0.0
        self._acknowledged = Lsn(0)
        self._sound = Lsn(0)
        """Received when the publication was last found as it should be."""

    def run(self) -> None:
        """Returns after a stop; raises what ended it otherwise."""
        with ExitStack() as stack:
            self._open(stack)
            try:
                self._loop()
                self._finish()
            except BaseException:
                self._save_what_is_complete()
                raise
            self._say("stopped")

    # start

    def _open(self, stack: ExitStack) -> None:
        source = self._config.source
        self._state = stack.enter_context(State.connect(self._config.state_url, source.name))
        subscription = self._state.subscription()
        if subscription is None or not subscription.complete:
            raise RunnelError(f"there is no subscription {source.name!r} yet", hint="runnel init")
        self._subscription = subscription
        epoch = self._state.claim_capture()
        self.claimed = True
        self._say("starting")
        for name in self._log.sweep():
            _log.warning("%s/%s is not the log's: left alone", self._log.path, name)
        application = f"runnel {source.name} capture"
        self._source = stack.enter_context(
            connect(self._config.source_url, application, silence=postgres.SILENCE)
        )
        self._stream = ReplicationStream(self._config.source_url, application)
        stack.callback(self._stream.close)
        go = self._decide(subscription)
        for note in go.notes:
            _log.warning("%s", note)
        if go.lineage != subscription.lineage:
            self._state.change_lineage(go.lineage)
        if go.bridge is not None:
            begin, end = go.bridge
            self._log.advance(ChunkHeader(lineage=go.lineage, epoch=epoch, start=begin, end=end))
        known = known_relations(self._log)
        catalogue = Catalogue(
            lambda: connect(self._config.source_url, application, silence=postgres.SILENCE), known
        )
        stack.callback(catalogue.close)
        self._cutter = Cutter(
            self._log,
            Spools(spool_directory(self._log.path, subscription)),
            catalogue.describe,
            lineage=go.lineage,
            epoch=epoch,
            end=go.start,
            chunk_bytes=self._config.log.chunk_bytes,
            known=known,
        )
        stack.callback(self._cutter.disconnected)
        self._retention = RetentionGuard(source.max_retained)
        self._tables = TableKeeper(
            self._config.source_url,
            self._state,
            subscription,
            source.tables,
            source.reconcile,
            read_rows(self._source, subscription.publication),
        )
        self._tables.start()
        stack.callback(self._tables.stop)
        self._start_stream(go)
        self._look_at_progress()
        self._say("streaming")
        self.streamed_since = time.monotonic()

    def _decide(self, subscription: Subscription) -> Go:
        server = catalog.server(self._source)
        usage, written = self._log.usage(), self._log.lineage()
        history = None
        if server.timeline != subscription.lineage.timeline or (
            written is not None and written.timeline != server.timeline
        ):
            history = self._stream.timeline_history(server.timeline)
        return decide(
            subscription,
            ServerFacts(server.system_id, server.timeline, history),
            read_slot(self._source, subscription.slot),
            LogFacts(usage.first, usage.end, written, self._log.path),
            {
                name: row.position.at(carry(self._log, row.position.lsn))
                for name, row in self._state.pipelines().items()
            },
            publication=read_publication(self._source, subscription.publication),
            ack=self._config.source.ack,
        )

    def _start_stream(self, go: Go) -> None:
        slot, publication = self._subscription.slot, self._subscription.publication
        self._stream.start(slot, publication, go.start, streaming=self._config.source.streaming)
        _log.info("streaming slot %s from %s", slot, go.start)

    # the loop

    def _loop(self) -> None:
        linger = self._config.log.linger
        while not self._stop.is_set():
            now = time.monotonic()
            if now >= self._progress_due:
                self._look_at_progress()
                self._look_at_source(now)
            if self._paused:
                self._stop.wait(_IDLE)
                self._progress_due = 0.0
                continue
            drained = self._take(now)
            if self._cutter.due(now, linger):
                self._cutter.cut()
            elif self._cutter.idle:
                self._advance_when_idle(now)
            self._stay_in_budget()
            if drained:
                self._stream.wait(linger / 4 if self._cutter.pending else _IDLE)

    def _take(self, now: float) -> bool:
        """One burst. Returns whether the socket is empty."""
        frames, keepalives = self._stream.read()
        if len(frames):
            self._cutter.feed(frames, now)
        for keepalive in keepalives:
            self._told = max(self._told, keepalive.wal_end)
        if any(keepalive.reply for keepalive in keepalives):
            self._stream.status(self._received, self._acknowledged, now=True)
        return self._stream.drained

    @property
    def _received(self) -> Lsn:
        return max(self._told, self._cutter.passed)

    def _advance_when_idle(self, now: float) -> None:
        if self._received > self._cutter.end and now - self._advanced >= self._pause:
            if self._acknowledged < self._cutter.end:  # and stays there, however far the log goes
                self._pause = min(2 * self._pause, _SLOWER * _ADVANCE)
            self._advance()
            self._advanced = now
            self._progress_due = now

    def _advance(self) -> None:
        self._look_at_publication()
        self._cutter.advance(self._told)

    def _look_at_publication(self) -> None:
        """Only after this is a silent stream a quiet source (see publication.py)."""
        received = self._received
        found = read_publication(self._source, self._subscription.publication)
        check_publication(self._subscription, found, self._sound)
        self._sound = received

    # feedback, trimming, room

    def _look_at_progress(self) -> Holdings:
        self._progress_due = time.monotonic() + _PROGRESS
        held = self._holdings()
        if held.acknowledge > self._acknowledged:
            self._look_at_publication()
            self._acknowledged = held.acknowledge
            self._stream.status(self._received, self._acknowledged)
            failpoint("capture.acknowledged")
        if self._acknowledged >= self._cutter.end:
            self._pause = _ADVANCE
        self._trim(held)
        self._make_room(held)
        events.emit(
            "progress",
            CAPTURE,
            lsn=str(self._received),
            log_lsn=str(self._cutter.end),
            log_bytes=self._log.usage().bytes,
            confirmed_lsn=str(self._acknowledged),
            changes=self._cutter.changes,
        )
        return held

    def _holdings(self) -> Holdings:
        rows = self._state.pipelines()
        return holdings(
            self._carried,
            self._cutter.end,
            {name: row.position.lsn for name, row in rows.items()},
            ack=self._config.source.ack,
            holds={name: row.hold for name, row in rows.items() if row.hold is not None},
        )

    def _trim(self, held: Holdings) -> None:
        first = self._log.usage().first
        oldest = None if first is None else next(iter(self._log.chunks(first)), None)
        if oldest is None or oldest.end > held.trim:
            return
        with self._state.trimming() as alone:
            if alone:
                self._trim_to(self._holdings())

    def _trim_to(self, held: Holdings) -> None:
        retain = self._config.log.retain
        keep_since = int((catalog.clock(self._source) - retain) * 1e6) if retain else 0
        self._log.trim(held.trim, keep_since=keep_since)
        too_much = self._log.usage().bytes - self._config.log.max_bytes
        if retain and too_much > 0:
            self._log.trim(excess(self._log, held.trim, too_much))

    def _stay_in_budget(self) -> None:
        if not self._paused and self._log.usage().bytes >= self._config.log.max_bytes:
            self._look_at_progress()  # something may have been delivered since the last look

    def _make_room(self, held: Holdings) -> None:
        """Pause while the log is full of what some pipeline still needs. What is being received may pass
        the budget, and so may a last chunk that nobody waits for."""
        usage, budget = self._log.usage().bytes, self._config.log.max_bytes
        full = usage >= budget and held.holder is not None
        if full and not self._paused:
            self._cutter.cut()
        if full:
            self._say(
                "paused", f"the log has {usage:,} of {budget:,} bytes, held by pipeline {held.holder!r}"
            )
        elif self._paused:
            self._say("streaming")
        self._paused = full

    def _look_at_source(self, now: float) -> None:
        if now < self._source_due:
            return
        self._source_due = now + _SOURCE
        self._look_at_tables()
        slot = self._slot()
        self._look_at_publication()
        self._retention.look(slot, catalog.current_lsn(self._source), self._acknowledged)

    def _slot(self) -> SlotFacts:
        slot = read_slot(self._source, self._subscription.slot)
        if slot is None:
            raise Refused(
                f"slot {self._subscription.slot!r} does not exist any more",
                hint="start afresh: runnel destroy && runnel init, then import again",
            )
        return slot

    def _look_at_tables(self) -> None:
        left = self._tables.left
        if left is None or self._received < left:
            return
        self._cutter.cut()
        if self._cutter.idle:
            self._advance()
        if self._cutter.end >= left:  # the next walsender begins behind what would mislead it too
            raise Transient("tables left, which this server version tells new connections only")

    # the end

    def _save_what_is_complete(self) -> None:
        """The connection is lost or something failed: complete transactions need not come again."""
        try:
            self._cutter.cut()
        except (RunnelError, OSError) as error:
            _log.debug("the open chunk is given up: %s", error)

    def _finish(self) -> None:
        self._take(time.monotonic())
        self._cutter.cut()
        if self._cutter.idle:
            self._advance()
        self._record_what_is_quiet()
        self._look_at_progress()
        self._stream.status(self._received, self._acknowledged, now=True)
        deadline = time.monotonic() + _LAST_WORD
        while time.monotonic() < deadline:
            if self._slot().confirmed >= self._acknowledged:
                return
            time.sleep(0.02)
        raise Unconfirmed(
            f"slot {self._subscription.slot!r} did not show {self._acknowledged} within {_LAST_WORD:.0f} s",
            hint="nothing is lost: the next run tells it again",
        )

    def _record_what_is_quiet(self) -> None:
        """Positions do not follow over empty chunks one by one, but the slot does: written down once, at
        the end, so that a log lost while nobody runs is no gap."""
        positions = {name: row.position.lsn for name, row in self._state.pipelines().items()}
        held = holdings(self._carried, self._cutter.end, positions, ack=self._config.source.ack)
        slowest = min(positions.values(), default=held.acknowledge)
        confirmed = max(self._acknowledged, held.acknowledge)
        if slowest < confirmed and carry(self._log, slowest) >= confirmed:
            self._state.record_quiet(slowest, confirmed)

    def _say(self, state: str, why: str | None = None) -> None:
        self._state.set_state(CAPTURE, state, detail={"why": why} if why else None)
        events.emit("state", CAPTURE, state=state, why=why)


def spool_directory(log_path: str, subscription: Subscription) -> Path:
    """Beside the chunks, where disk for them was planned; for a log in an object store on local disk."""
    if "://" in log_path:
        return Path(f".runnel/spool/{subscription.slot}").absolute()
    return Path(log_path) / "_spool"
