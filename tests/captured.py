"""Capture run in a thread against a real server, and what stands in its log."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from capturing import Change, MemoryLog, changes
from runnel.capture import service
from runnel.capture.slot import read_slot
from runnel.capture.subscription import Wanted, init
from runnel.config import Config, load
from runnel.log import open_log
from runnel.log.api import ChunkHeader
from runnel.postgres.connect import connect
from runnel.postgres.lsn import Lsn
from runnel.progress.state import State
from servers import await_condition

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"


class Captured:
    """A subscription with one pipeline `p`, its log, and capture in a thread when `running`."""

    def __init__(self, url: str, directory: Path, log: dict[str, Any], source: dict[str, Any]) -> None:
        self.url = url
        self.path = str(directory / "log")
        self.config: Config = load(
            None,
            {
                "source": {"url": url, "name": "shop", "reconcile": 3600, **source},
                "log": {"path": self.path, **log},
                "pipelines": {"p": {"sink": {"type": "stdout"}}},
            },
            default=None,
        )
        with State.connect(url, "shop") as state:
            wanted = Wanted("shop", self.config.source.tables, ("p",))
            self.slot = init(url, state, wanted, lambda _: None).subscription.slot
        self.failure: BaseException | None = None

    @contextmanager
    def running(self, *, confirm: bool = False) -> Iterator[None]:
        stop = threading.Event()

        def work() -> None:
            try:
                service.run(self.config, stop, confirm=confirm)
            except BaseException as error:  # noqa: BLE001 - told to the test
                self.failure = error

        thread = threading.Thread(target=work)
        thread.start()
        try:
            await_condition(lambda: self.failure or self.state() == "streaming", what="streaming")
            yield
        finally:
            stop.set()
            thread.join(30)
            assert not thread.is_alive()

    def execute(self, *statements: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def one(self, query: str) -> Any:
        with psycopg.connect(self.url, autocommit=True) as connection:
            row = connection.execute(query.encode()).fetchone()
            return row[0] if row else None

    def state(self) -> str:
        with State.connect(self.url, "shop") as state:
            return state.known().state

    def detail(self) -> Any:
        with State.connect(self.url, "shop") as state:
            return state.known().detail

    def deliver(self, lsn: Lsn) -> None:
        """What a pipeline does after a batch."""
        with State.connect(self.url, "shop") as state:
            state.store_position("p", state.claim_pipeline("p").at(lsn))

    def confirmed(self) -> Lsn:
        with connect(self.url, "test") as connection:
            slot = read_slot(connection, self.slot)
            assert slot is not None
            return slot.confirmed

    def log(self) -> MemoryLog:
        log, out = open_log(self.path), MemoryLog()
        first = log.usage().first
        for ref in log.chunks(first) if first is not None else ():
            reader = log.open(ref.name)
            frames = []
            for piece in reader.pieces():
                for a, b in zip(piece.offsets[:-1].tolist(), piece.offsets[1:].tolist(), strict=True):
                    frames.append(piece.buffer[a:b].tobytes())
            out.chunks.append((reader.header, frames))
            reader.close()
        return out

    def await_chunks(self, least: int) -> None:
        await_condition(lambda: len(self.headers()) >= least, what=f"{least} chunks in the log")

    def await_confirmed(self, lsn: Lsn) -> None:
        await_condition(lambda: self.confirmed() >= lsn, what=f"{lsn} confirmed")

    def headers(self) -> list[ChunkHeader]:
        return [header for header, _ in self.log().chunks]

    def changes(self) -> list[Change]:
        found = list(changes(self.log()))
        assert [(c.lsn, c.seq) for c in found] == sorted({(c.lsn, c.seq) for c in found})
        return found

    def ids(self) -> list[int]:
        return [int(change.what) for change in self.changes()]

    def await_ids(self, *expected: int, timeout: float = 30) -> None:
        await_condition(
            lambda: self.ids() == list(expected), timeout, what=f"{len(expected)} rows in the log"
        )
