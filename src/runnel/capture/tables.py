"""Keeps the publication's tables as the configuration wants them while capture runs.

A thread with a connection of its own: adding a table may wait for a lock, and the stream must not.
What must hold: a failure here is said and tried again; it never stops capture. A publication that is
not as it should be is left alone: capture's own look refuses it. So is one that `init` made for other
patterns than this capture has: what it published is not for an older configuration to take out. What
joined, by whomever, is settled and noted (see settling.py).
"""

from __future__ import annotations

import logging
import threading
import time

import psycopg

from ..errors import RunnelError
from ..postgres import catalog
from ..postgres.connect import SILENCE, Connection, connect
from ..postgres.lsn import Lsn
from ..postgres.patterns import TablePatterns
from ..progress.owners import AlreadyRunning
from ..progress.records import Subscription
from ..progress.state import State
from . import membership
from .membership import Membership
from .publication import read_publication
from .settling import (
    Difference,
    Row,
    alone,
    compare,
    horizon,
    not_renewed,
    oldest_running,
    poisons,
    read_rows,
    settle,
    were_out,
)

_log = logging.getLogger(__name__)

_SETTLING = 0.5
"""Seconds between looks while transactions are waited for."""
_PATIENCE = 5.0
"""Seconds to wait for an `init` that is at the tables; it may be long, and the next look comes."""

OTHER_TABLES = (
    "source.tables was changed: `runnel init` made the publication follow other patterns than this capture"
    " has, which leaves it as it is (restart capture with the new configuration; if its own is the newer:"
    " runnel init)"
)


class TableKeeper:
    def __init__(
        self,
        url: str,
        state: State,
        subscription: Subscription,
        tables: tuple[str, ...],
        interval: float,
        members: dict[int, Row],
    ) -> None:
        """`members`: of the publication, read before the stream started."""
        self.left: Lsn | None = None
        """A walsender that has come this far may still send tables that left: it caches that they are
        members (where the server is not cured of that). None: no such trouble."""
        self._url = url
        self._state = state
        self._publication = subscription.publication
        self._subscription = subscription
        self._tables = frozenset(tables)
        self._patterns = TablePatterns(tables)
        self._interval = interval
        self._stop = threading.Event()
        self._said: set[str] = set()
        self._members = members
        self._left: dict[int, Row] = {}
        self._horizons: dict[tuple[int, int], int] = {}
        """(table, its row) that is not settled → every transaction to wait for is below that."""
        self._thread = threading.Thread(target=self._run, name="runnel-tables", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()  # not joined: it may wait for a lock, and dies with the process

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._look()
            except AlreadyRunning as error:
                _log.debug("tables are left to the next look: %s", error)
            except (psycopg.Error, RunnelError) as error:
                if not self._stop.is_set():
                    _log.warning("tables could not be looked at: %s", error)
            if self._interval <= 0:
                return
            self._stop.wait(self._interval)

    def _look(self) -> None:
        # A connection each time: one every half minute is cheap, and none is left idle.
        with connect(self._url, f"runnel {self._publication} tables", silence=SILENCE) as connection:
            found = read_publication(connection, self._publication)
            if found is None or found.id != self._subscription.id or found.altered:
                return
            with alone(self._state, wait=_PATIENCE):
                noted = self._state.known()
                if noted.tables not in (None, self._tables):
                    self._say(OTHER_TABLES)
                    return
                report = membership.reconcile(connection, self._publication, self._patterns)
                now = read_rows(connection, self._publication)
                difference = compare(noted.members, now, (table.oid for table in report.tables))
                if difference.gone:
                    self._state.note_members(noted.publication_oid, {}, difference.gone)
            self._tell(report, difference)
            self._left |= self._members if poisons(connection.info.server_version) else {}
            self._left = {table: row for table, row in self._left.items() if table not in now}
            self._members = now
            self._settle(connection, noted.publication_oid, difference)

    def _tell(self, report: Membership, difference: Difference) -> None:
        for names, what in ((report.added, "joined"), (report.dropped, "left")):
            if names:
                _log.info("%s %s the subscription", ", ".join(names), what)
        for table, row in difference.returned.items():
            if (table, row.oid) not in self._horizons:
                _log.warning("%s", were_out(row, self._publication))
        for problem in report.problems():
            self._say(
                f"{problem.label}: {problem.reason}" + (f" ({problem.remedy})" if problem.remedy else "")
            )

    def _say(self, sentence: str) -> None:
        """Once."""
        if sentence not in self._said:
            _log.warning("%s", sentence)
            self._said.add(sentence)

    def _settle(self, connection: Connection, publication: int | None, difference: Difference) -> None:
        """As far as it comes before the next look."""
        waiting = difference.fresh | self._left
        deadline = time.monotonic() + (self._interval or float("inf"))
        bound = horizon(connection) if waiting else 0
        self._horizons = {
            (table, row.oid): self._horizons.get((table, row.oid), bound) for table, row in waiting.items()
        }
        while waiting and time.monotonic() < deadline and not self._stop.is_set():
            over = oldest_running(connection)
            ready = {t: row for t, row in waiting.items() if self._horizons[t, row.oid] <= over}
            fresh = {table: row for table, row in ready.items() if table in difference.fresh}
            if fresh:
                self._note(connection, publication, fresh)
            if self._left.keys() & ready.keys():
                self.left = catalog.current_lsn(connection)
                self._left = {table: row for table, row in self._left.items() if table not in ready}
            waiting = {table: row for table, row in waiting.items() if table not in ready}
            if waiting:
                self._stop.wait(_SETTLING)

    def _note(self, connection: Connection, publication: int | None, fresh: dict[int, Row]) -> None:
        """What cannot be settled now is left to the next look."""
        with alone(self._state, wait=_PATIENCE):
            settled, failed = settle(connection, self._publication, fresh)
            self._state.note_members(publication, settled)
        self._members |= {table: Row(oid, fresh[table].sql) for table, oid in settled.items()}
        for table, why in failed.items():
            self._say(not_renewed(table, why))
