"""What each step of a task costs: the same captured changes read, decoded and put into a format, again and
again in this process, without Spark and without writing."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from ..changes.block import Window
from ..changes.decode import decode
from ..log import open_log
from ..log.api import ChangeLog, ChunkReader
from ..marshal.json import lines
from ..marshal.typed import typed
from ..postgres.lsn import Lsn
from . import workload as loads
from .drain import Bench
from .pipeline import Pipeline
from .workload import Workload

_PASSES = 5


def stages(bench: Bench, changes: int = 200_000) -> dict[str, Any]:
    """CPU in µs a change: the best of several passes, each step without those before it."""
    work = Workload("stages", "inserts, 100 a transaction", 1, 0, changes, 100)
    with bench.connect() as connection:
        loads.create(connection, work)
    pipeline = Pipeline(bench, "stages", {"type": "files"})
    pipeline.init()
    pipeline.fill(bench.load(work, 0, changes))
    log = open_log(str(Path(pipeline.home) / "log"))

    def costs(step: Callable[[ChunkReader], None]) -> float:
        return min(_once(log, step) for _ in range(_PASSES)) / changes * 1e6

    read = costs(_read)
    decoded = costs(_each_window(lambda window: None))
    out = {
        "read and check": read,
        "decode": decoded - read,
        "JSON lines": costs(_each_window(lines)) - decoded,
        "typed columns": costs(_each_window(lambda window: list(typed(window)))) - decoded,
    }
    pipeline.destroy()
    return {name: round(cost, 3) for name, cost in out.items()}


def _once(log: ChangeLog, step: Callable[[ChunkReader], None]) -> float:
    first = log.usage().first
    began = time.process_time()
    for chunk in log.chunks(Lsn(first or 0)):
        with closing(log.open(chunk.name)) as reader:
            step(reader)
    return time.process_time() - began


def _read(reader: ChunkReader) -> None:
    for _ in reader.pieces():
        pass


def _each_window(use: Callable[[Window], object]) -> Callable[[ChunkReader], None]:
    def step(reader: ChunkReader) -> None:
        for window in decode(reader, Lsn(0)):
            use(window)

    return step
