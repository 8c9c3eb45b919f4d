"""Runnel's state in schema `runnel`: the subscription, each pipeline's position, dead letters, owners.

What comes in: claims, positions and states from the processes that own capture and pipelines. What
goes out: where to begin, who lives, what is wrong. One `State` is one connection (autocommit) to the
state database and speaks for one subscription; it may be shared by threads.

What must hold:
- an owner holds a session advisory lock and an epoch. While it lives a second one is `Refused`, by
  name; when it is gone the second gets epoch + 1 and the first one's next store is `Refused`;
- rows are written when something changed, never as a heartbeat: an idle source stays idle;
- a lost connection raises `psycopg.OperationalError`: make a new `State` and claim again.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

from ..errors import Refused, RunnelError, Transient
from ..failpoints import failpoint
from ..log.api import Lineage
from ..postgres import catalog
from ..postgres import connect as postgres
from ..postgres.connect import Connection, connect
from ..postgres.lsn import Lsn
from . import letters, owners, pipelines, schema, subscriptions
from .letters import Key, Letter, Passed, Rejected
from .owners import AlreadyRunning, Owner
from .position import Position
from .records import PipelineRow, Subscription

CAPTURE = "capture"
"""`who` of capture; no pipeline may have this name."""

_TRIM = "\0trim"
"""Lock of whoever trims the log, or lowers what is held of it; no pipeline can have this name."""

CLAIM_WAIT = 5.0
"""Seconds to wait for a lock whose owner was just killed: its server process needs a moment to notice."""


class State:
    def __init__(self, connection: Connection, name: str) -> None:
        self.connection = connection
        self.name = name
        owners.remember(connection)
        self._epochs: dict[str, int] = {}
        self._written: dict[str, tuple[str, str | None, Any]] = {}
        # psycopg lets threads share a connection, but a transaction would mix their statements
        self._lock = threading.RLock()

    @classmethod
    def connect(cls, url: str, name: str, application: str = "") -> Self:
        """`application` tells others who holds a claim: by default process and host."""
        return cls(connect(url, application or owners.identity(), silence=postgres.SILENCE), name)

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # the schema

    def installed(self) -> bool:
        """Refused if it is of another version: whatever is read of it then would be taken for missing."""
        with self._lock:
            version = schema.version(self.connection)
            schema.check_version(version)
            if version is not None and version < len(schema.MIGRATIONS):
                raise Refused(
                    f"schema {schema.SCHEMA} has version {version}, of an earlier Runnel; this one needs"
                    f" {len(schema.MIGRATIONS)}",
                    hint="runnel init (or runnel run) brings it up",
                )
            return version is not None

    def install(self) -> None:
        with self._lock:
            schema.install(self.connection)

    def migrate(self) -> None:
        """Bring up what is there to this version; where nothing is, nothing is made."""
        with self._lock:
            if schema.version(self.connection) is not None:
                schema.install(self.connection)

    def uninstall(self) -> bool:
        """Forget this subscription; drop the schema with the last one. True: nothing is left."""
        with self._lock, self.connection.transaction():
            if schema.version(self.connection) is None:
                schema.uninstall(self.connection)
                return True
            self.connection.execute("LOCK TABLE runnel.subscription IN ACCESS EXCLUSIVE MODE")
            self.connection.execute("DELETE FROM runnel.subscription WHERE name = %s", [self.name])
            left = self.connection.execute("SELECT count(*) FROM runnel.subscription").fetchone()
            if left is not None and left[0]:
                return False
            schema.uninstall(self.connection)
            return True

    # the subscription

    def clock(self) -> float:
        """The server's."""
        with self._lock:
            return catalog.clock(self.connection)

    def subscription(self) -> Subscription | None:
        with self._lock:
            if not self.installed():
                return None
            return subscriptions.read(self.connection, self.name)

    def create_subscription(
        self, id_: uuid.UUID, slot: str, publication: str, system_id: str, timeline: int
    ) -> Subscription:
        """Note the intent, before anything exists at the source; what is noted already stays."""
        with self._lock:
            subscriptions.create(self.connection, self.name, id_, slot, publication, system_id, timeline)
        subscription = self.subscription()
        assert subscription is not None  # noqa: S101 - the row above
        return subscription

    def complete_subscription(self, consistent: Lsn, pipelines: Iterable[str]) -> None:
        """The slot exists: from here on the subscription counts, with these pipelines at its start."""
        with self._lock, self.connection.transaction():
            subscriptions.complete(self.connection, self.name, consistent)
            for pipeline in pipelines:
                self.register(pipeline, consistent)

    def note_members(
        self, publication_oid: int | None, settled: Mapping[int, int], gone: Iterable[int] = ()
    ) -> None:
        """These membership rows are what the stream goes by: for each table's oid its row's. Another row
        seen later means that the table was out in between."""
        with self._lock:
            subscriptions.note_members(self.connection, self.name, publication_oid, settled, gone)

    def note_tables(self, patterns: Iterable[str]) -> None:
        """By `init`, before it changes the publication: the patterns that decide from now on what is in
        it. A capture that runs with others leaves it alone."""
        with self._lock:
            subscriptions.note_tables(self.connection, self.name, patterns)

    def record_quiet(self, begin: Lsn, end: Lsn) -> None:
        """By capture, when it stops: it confirms `end` though a position is still at `begin`, because the
        log shows that nothing happened between. Should the log be lost, this is what is left to know it."""
        with self._lock:
            subscriptions.record_quiet(self.connection, self.name, self._epochs.get(CAPTURE), begin, end)

    def change_lineage(self, lineage: Lineage, *, base: Lsn | None = None) -> None:
        """Go on under another timeline (a clean failover) or system (`init --accept-server`); positions
        of before stay ours. `base`: where the slot begins on the new system."""
        with self._lock:
            subscriptions.change_lineage(self.connection, self.name, lineage, base)

    def known(self) -> Subscription:
        """The subscription, complete, or an error that says how to make it."""
        subscription = self.subscription()
        if subscription is None or not subscription.complete:
            what = "does not exist" if subscription is None else "is half made"
            raise RunnelError(f"subscription {self.name!r} {what}", hint="runnel init")
        return subscription

    # owners

    def claim_capture(self, wait: float = CLAIM_WAIT) -> int:
        """Own capture as long as this connection lives. Returns the epoch."""
        self._claim(CAPTURE, f"capture of {self.name!r}", wait)
        return self._epochs[CAPTURE]

    def claim_pipeline(self, pipeline: str, wait: float = CLAIM_WAIT) -> Position:
        """Own a pipeline as long as this connection lives. Returns its position under the new epoch and
        the subscription's present lineage, with those of before a failover or an upgrade."""
        self._claim(pipeline, f"pipeline {pipeline!r}", wait)
        position, subscription = self._row(pipeline).position, self.known()
        if not subscription.owns(position.lineage):
            raise Refused(
                f"the position of pipeline {pipeline!r} is of slot {position.lineage.slot!r} on server"
                f" {position.lineage.system_id}, not of {subscription.slot!r}"
                f" on {subscription.lineage.system_id}",
                hint=f"register it anew: runnel remove {pipeline} && runnel init",
            )
        return replace(position, lineage=subscription.lineage, former=subscription.former)

    def release(self, who: str) -> None:
        with self._lock:
            if self._epochs.pop(who, None) is not None:
                owners.unlock(self.connection, owners.key(self.name, who))
            self._written.pop(who, None)

    def owner(self, who: str) -> Owner | None:
        """Who holds the lock of capture or of a pipeline now; None: nobody, it is stopped."""
        with self._lock:
            return owners.holder(self.connection, owners.key(self.name, who))

    @contextmanager
    def only_one(self, what: str, label: str, wait: float = 60.0) -> Iterator[None]:
        """Nobody else does this for the subscription meanwhile."""
        lock = what if what.startswith("\0") else f"\0{what}"  # no pipeline can have this name
        self._wait_for_lock(lock, label, wait)
        try:
            yield
        finally:
            if not self.connection.closed:
                owners.unlock(self.connection, owners.key(self.name, lock))

    def _wait_for_lock(self, who: str, label: str, wait: float, *, may_banish: bool = False) -> None:
        deadline = time.monotonic() + wait
        while not self._try_lock(who):
            owner = self.owner(who)
            if owner is None:  # it left between the two looks
                continue
            if may_banish:
                may_banish = not owners.banish_ghost(self.connection, owner)
            if time.monotonic() > deadline:
                raise AlreadyRunning(
                    f"{label} is running already: {owner}",
                    hint="stop the other one, or wait until it ends; if its machine is gone: "
                    f"SELECT pg_terminate_backend({owner.pid})",
                )
            time.sleep(0.1)

    def _claim(self, who: str, what: str, wait: float) -> None:
        self._wait_for_lock(who, what, wait, may_banish=True)
        with self._lock:
            if who == CAPTURE:
                row = self.connection.execute(
                    "UPDATE runnel.subscription SET epoch = epoch + 1 WHERE name = %s RETURNING epoch",
                    [self.name],
                ).fetchone()
            else:
                row = self.connection.execute(
                    "UPDATE runnel.progress SET epoch = epoch + 1"
                    " WHERE subscription = %s AND pipeline = %s AND state <> 'joining' RETURNING epoch",
                    [self.name, who],
                ).fetchone()
            if row is None:
                owners.unlock(self.connection, owners.key(self.name, who))
                raise RunnelError(f"{what} is not known to the state", hint="runnel init")
            self._epochs[who] = int(row[0])

    def _try_lock(self, who: str) -> bool:
        with self._lock:
            if who in self._epochs:  # advisory locks are counted: one is enough
                return True
            return owners.try_lock(self.connection, owners.key(self.name, who))

    # pipelines

    def pipelines(self) -> dict[str, PipelineRow]:
        return {row.name: row for row in self._rows(None)}

    def register(self, pipeline: str, lsn: Lsn, *, state: str = "stopped") -> bool:
        """A pipeline that is not known yet begins at `lsn`. False: it is known and stays where it is."""
        if pipeline == CAPTURE:
            raise RunnelError(f"a pipeline may not be called {CAPTURE!r}", hint="choose another name")
        with self._lock:
            return pipelines.register(self.connection, self.name, pipeline, lsn, state)

    def join(self, pipeline: str, current: Callable[[], Lsn]) -> Lsn | None:
        """A pipeline joins while capture may run: it begins where the source is once its row can be seen.
        Whatever capture confirms without having seen the row lies before that. Whoever dies in between
        leaves a row that nobody can claim, until the next one settles it. None: known already."""
        row = self.pipelines().get(pipeline)
        if row is not None and row.state != pipelines.JOINING:
            return None
        with self._unowned(pipeline):
            if row is None and not self.register(pipeline, current(), state=pipelines.JOINING):
                return None
            failpoint("init.joining")
            begin = current()
            self.reposition(pipeline, begin)
            return begin

    def remove(self, pipeline: str) -> None:
        """Retire a pipeline: its position no longer holds the slot; its letters go with it."""
        self._row(pipeline)
        with self._unowned(pipeline):
            pipelines.remove(self.connection, self.name, pipeline)

    def is_fresh(self, pipeline: str) -> bool:
        """Was it registered, and its target not opened since?"""
        return self._row(pipeline).fresh

    def begun(self, pipeline: str) -> None:
        """By its owner: the target is open and stands where this pipeline begins."""
        with self._lock:
            pipelines.begun(self.connection, self.name, pipeline, self._epochs.get(pipeline))

    def held(self, pipeline: str) -> Lsn | None:
        """From where on the log is kept for what is delivered again; None: for nothing."""
        return self._row(pipeline).hold

    def pause(self, pipeline: str) -> None:
        self._set_paused(pipeline, True)

    def resume(self, pipeline: str) -> None:
        self._set_paused(pipeline, False)

    def reposition(self, pipeline: str, lsn: Lsn) -> None:
        """Begin again at `lsn` (replay). Only while nobody else owns the pipeline."""
        self._row(pipeline)
        with self._unowned(pipeline):
            row = self.connection.execute(
                "UPDATE runnel.progress SET lsn = %s, epoch = epoch + 1, updated_at = now(),"
                " state = CASE state WHEN 'joining' THEN 'stopped' ELSE state END"
                " WHERE subscription = %s AND pipeline = %s RETURNING epoch",
                [str(lsn), self.name, pipeline],
            ).fetchone()
            if row is not None and pipeline in self._epochs:
                self._epochs[pipeline] = int(row[0])

    def hold(self, pipeline: str, lsn: Lsn | None) -> None:
        """By its owner: the log keeps everything from `lsn` on, which is before the position, for it. A
        stored position past it ends that, and so does None. What was trimmed before is gone: look
        for it after this call."""
        try:
            with self.only_one(_TRIM, "trimming of the log"), self._lock:
                pipelines.hold(self.connection, self.name, pipeline, self._epochs.get(pipeline), lsn)
        except AlreadyRunning as error:  # capture deletes slowly
            raise Transient(error.message, hint="it is tried again by itself") from error

    @contextmanager
    def trimming(self) -> Iterator[bool]:
        """By capture: True, nobody holds anything new inside this block; False, try again later."""
        mine = self._try_lock(_TRIM)
        try:
            yield mine
        finally:
            if mine and not self.connection.closed:
                owners.unlock(self.connection, owners.key(self.name, _TRIM))

    def store_position(self, pipeline: str, position: Position, changes: int = 0) -> None:
        """The pipeline is durable up to `position.lsn`. Compare-and-set on the owner's epoch."""
        with self._lock:
            stored = pipelines.store(self.connection, self.name, pipeline, position, changes)
        if not stored:
            rows = self._rows(pipeline)
            raise Refused(
                f"pipeline {pipeline!r} was taken over by another owner (epoch {rows[0].position.epoch},"
                f" this one has {position.epoch})"
                if rows
                else f"pipeline {pipeline!r} was removed while it ran",
                hint="only one process may run a pipeline; stop this one",
            )

    def set_state(self, who: str, state: str, *, error: str | None = None, detail: Any = None) -> None:
        """What `status` shows of capture or of a pipeline. Written only if it differs from the last."""
        with self._lock:
            if self._written.get(who) == (state, error, detail):
                return
            epoch = self._epochs.get(who)
            if who == CAPTURE:
                pipelines.say_capture(self.connection, self.name, epoch, state, error, detail)
            else:
                pipelines.say(self.connection, self.name, who, epoch, state, error, detail)
            self._written[who] = (state, error, detail)

    # dead letters

    def store_letters(self, pipeline: str, rejects: Sequence[Rejected], most: int | None = None) -> None:
        """Their keys are parked from then on. With more than `most`: an error, none stored."""
        with self._lock:
            letters.store(self.connection, self.name, pipeline, rejects, most)

    def explain_letters(self, pipeline: str, rejects: Iterable[Rejected]) -> None:
        with self._lock:
            letters.explain(self.connection, self.name, pipeline, rejects)

    def letters_behind(self, pipeline: str, lsn: Lsn) -> list[Passed]:
        with self._lock:
            return letters.behind(self.connection, self.name, pipeline, lsn)

    def parked(self, pipeline: str) -> list[Key]:
        with self._lock:
            return letters.parked(self.connection, self.name, pipeline)

    def letters(
        self,
        pipeline: str | None = None,
        *,
        table: str | None = None,
        key: str | None = None,
        by_key: bool = True,
        limit: int | None = None,
    ) -> list[Letter]:
        """Ordered by table, key, lsn, seq; with `by_key=False` by lsn, seq (the order to replay in where
        keys changed: a row's letters then stand under several keys)."""
        with self._lock:
            return letters.find(
                self.connection, self.name, pipeline, table=table, key=key, by_key=by_key, limit=limit
            )

    def letter_counts(self) -> dict[str, int]:
        with self._lock:
            return letters.counts(self.connection, self.name)

    def drop_letters(
        self,
        pipeline: str,
        *,
        table: str | None = None,
        key: str | None = None,
        at: Sequence[tuple[Lsn, int]] | None = None,
    ) -> int:
        with self._lock:
            return letters.drop(self.connection, self.name, pipeline, table=table, key=key, at=at)

    # inner parts

    def _rows(self, pipeline: str | None) -> list[PipelineRow]:
        with self._lock:
            return pipelines.read(self.connection, self.name, pipeline)

    def _row(self, pipeline: str) -> PipelineRow:
        rows = self._rows(pipeline)
        if not rows:
            known = ", ".join(self.pipelines()) or "none"
            raise RunnelError(
                f"pipeline {pipeline!r} is not known to the state (known: {known})",
                hint="check its name; `runnel init` registers what the configuration has",
            )
        return rows[0]

    def _set_paused(self, pipeline: str, paused: bool) -> None:
        self._row(pipeline)
        with self._lock:
            self.connection.execute(
                "UPDATE runnel.progress SET paused = %(paused)s"
                " WHERE subscription = %(name)s AND pipeline = %(pipeline)s AND paused <> %(paused)s",
                {"paused": paused, "name": self.name, "pipeline": pipeline},
            )

    @contextmanager
    def _unowned(self, pipeline: str) -> Iterator[None]:
        """Nobody else owns the pipeline, and nobody can claim it, inside this block."""
        with self._lock:
            mine = pipeline in self._epochs
            if not self._try_lock(pipeline):
                raise Refused(
                    f"pipeline {pipeline!r} is running: {self.owner(pipeline)}",
                    hint="stop it first (`runnel run` with it, or `runnel pipeline`)",
                )
            try:
                yield
            finally:
                if not mine and not self.connection.closed:
                    owners.unlock(self.connection, owners.key(self.name, pipeline))
