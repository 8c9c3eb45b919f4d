"""Keeps the publication's tables as the configuration wants them while capture runs.

A thread with a connection of its own: adding a table may wait for a lock, and the stream must not.
What must hold: a failure here is said and tried again; it never stops capture.
"""

from __future__ import annotations

import logging
import threading

import psycopg

from ..errors import RunnelError
from ..postgres.connect import SILENCE, connect
from ..postgres.patterns import TablePatterns
from . import membership

_log = logging.getLogger(__name__)

_CURED = {13: 130_022, 14: 140_019, 15: 150_014, 16: 160_010, 17: 170_006}
"""From these minor releases on (August 2025) a walsender notices a membership change by itself."""


def needs_reconnection(server_version: int) -> bool:
    return server_version < _CURED.get(server_version // 10_000, 0)


class TableKeeper:
    def __init__(self, url: str, publication: str, tables: tuple[str, ...], interval: float) -> None:
        self.changed = threading.Event()
        """Set when tables joined or left."""
        self._url = url
        self._publication = publication
        self._patterns = TablePatterns(tables)
        self._interval = interval
        self._stop = threading.Event()
        self._said: set[str] = set()
        self._published: set[int] = set()
        """Oids, as left at the last look."""
        self._thread = threading.Thread(target=self._run, name="runnel-tables", daemon=True)

    def start(self) -> None:
        if self._interval > 0:
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()  # not joined: it may wait for a lock, and dies with the process

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._reconcile()
            except (psycopg.Error, RunnelError) as error:
                _log.warning("tables could not be looked at: %s", error)
            self._stop.wait(self._interval)

    def _reconcile(self) -> None:
        # A connection each time: one every half minute is cheap, and none is left idle.
        with connect(self._url, f"runnel {self._publication} tables", silence=SILENCE) as connection:
            report = membership.reconcile(connection, self._publication, self._patterns)
        for names, what in ((report.added, "joined"), (report.dropped, "left")):
            if names:
                _log.info("%s %s the subscription", ", ".join(names), what)
        for table in report.tables:
            if table.oid in self._published and table.label in report.added:
                _log.warning(
                    "%s was taken out of publication %s by somebody else and is in again: changes of it in"
                    " between were not captured (compare this table with its copies)",
                    table.label,
                    self._publication,
                )
        self._published = {table.oid for table in report.tables if table.published}
        for table in report.problems():
            sentence = f"{table.label}: {table.reason}"
            if sentence not in self._said:
                _log.warning("%s%s", sentence, f" ({table.remedy})" if table.remedy else "")
                self._said.add(sentence)
        if report.changed and not self._stop.is_set():
            self.changed.set()
