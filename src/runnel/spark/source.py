"""The data source `runnel`: Spark's view of the change log.

Views: `changes` (default) and `table` are public, streaming and batch, see views.py; `work` is a
pipeline's own: its tasks do everything inside `read()` and their rows are receipts, see work.py.
Offsets are LSNs, `{"lsn": "0/16B3748"}`: the end of the chunk up to which everything was read.

What runs where: `latestOffset` and `partitions` in one planner process per query, `read` in task
workers. Everything here is pickled by name, so it holds nothing but options. PySpark 4.1 calls
`latestOffset()` without arguments and has no read limits: the reader limits itself (admission.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from ..log import open_log
from ..postgres.lsn import Lsn
from ..sinks.api import Plan
from .admission import Admission, Share, chain, shares, shares_by_key
from .control import Control
from .options import limits, log_path, start_of, tasks
from .receipts import SCHEMA as RECEIPT_SCHEMA

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from ..log.api import ChangeLog, ChunkRef

BATCH_READ_BYTES = 64 << 20
"""Of log, per task of a batch read."""


class RunnelDataSource(DataSource):  # type: ignore[misc]
    @classmethod
    def name(cls) -> str:
        return "runnel"

    def schema(self) -> StructType | str:
        options = dict(self.options)
        if options.get("view") == "work":
            return RECEIPT_SCHEMA
        from . import views

        return views.schema(options)

    def streamReader(self, schema: StructType) -> StreamReader:
        options = dict(self.options)
        if options.get("view") == "work":
            return WorkReader(options)
        from . import views

        return StreamReader(options, views.columns(options, schema))

    def reader(self, schema: StructType) -> BatchReader:
        from . import views

        options = dict(self.options)
        return BatchReader(options, views.columns(options, schema))


class StreamReader(DataSourceStreamReader):  # type: ignore[misc]
    """Streams a public view. With `until` the last offset is exactly there, inside a chunk if need be: a
    later query goes on from it without a gap."""

    _whole = False
    """Whether a batch must end with a chunk."""

    def __init__(self, options: Mapping[str, str], columns: pa.Schema | None = None) -> None:
        self.options = dict(options)
        self._limits = limits(self.options)
        self._columns = columns
        self._at: Lsn | None = None

    def initialOffset(self) -> dict[str, str]:
        self._at = start_of(self._log, self.options.get("start", "latest"))
        return {"lsn": str(self._at)}

    def latestOffset(self, start: dict[str, str] | None = None, limit: Any = None) -> dict[str, str]:
        if start is not None:
            self._at = Lsn.parse(start["lsn"])
        if self._at is None:
            self.initialOffset()
        assert self._at is not None  # noqa: S101
        return {"lsn": str(self._next_end(self._at))}

    def _next_end(self, start: Lsn) -> Lsn:
        end = self._admission.next_end(start)
        return end if self._limits.until is None else min(end, max(start, self._limits.until))

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        begin, stop = Lsn.parse(start["lsn"]), Lsn.parse(end["lsn"])
        self._at = stop
        if stop <= begin:
            return []
        refs = self._admission.chunks(begin, stop, whole=self._whole)
        return [InputPartition(share) for share in self._shares(begin, stop, refs)]

    def _shares(self, start: Lsn, end: Lsn, refs: list[ChunkRef]) -> list[Share]:
        return shares(start, end, refs, tasks(self.options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from . import views

        return views.read(self.options, self._columns, partition.value)

    @cached_property
    def _log(self) -> ChangeLog:
        return open_log(log_path(self.options))

    @cached_property
    def _admission(self) -> Admission:
        return Admission(self._log, self._limits)

    def __getstate__(self) -> dict[str, Any]:
        kept = ("options", "_limits", "_columns")  # a task needs neither log nor look-out
        return {name: getattr(self, name) for name in kept} | {"_at": None}


class WorkReader(StreamReader):
    """A pipeline's query: tasks deliver, rows are receipts. `until` only has to be reached."""

    _whole = True

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        from . import work

        spec = work.WorkSpec.from_json(json.loads(self.options["spec"]))
        work.mend_worker(spec)
        share: Share = partition.value
        context = TaskContext.get()
        report = work.run(spec, share, context.attemptNumber() if context is not None else 0)
        yield pa.RecordBatch.from_pydict({"receipt": [report.to_json()]})

    def _shares(self, start: Lsn, end: Lsn, refs: list[ChunkRef]) -> list[Share]:
        keyed = json.loads(self.options["spec"])["plan"] == Plan.KEYED
        return (shares_by_key if keyed else shares)(start, end, refs, tasks(self.options))

    def _next_end(self, start: Lsn) -> Lsn:
        return self._control.offer(start, self._admission.next_end(start))

    @cached_property
    def _control(self) -> Control:
        return Control(self.options["control"])

    @cached_property
    def _admission(self) -> Admission:
        return Admission(self._log, self._limits, self._control.held)


class BatchReader(DataSourceReader):  # type: ignore[misc]
    """Reads a public view once: everything the log holds from `start` on, up to `until`."""

    def __init__(self, options: Mapping[str, str], columns: pa.Schema | None = None) -> None:
        self.options = dict(options)
        self._limits = limits(self.options)
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        log = open_log(log_path(self.options))
        start = start_of(log, self.options.get("start", "earliest"))
        until = self._limits.until
        refs = list(takewhile(lambda ref: until is None or ref.start < until, chain(log, start)))
        end = min([ref.end for ref in refs[-1:]] + ([] if until is None else [until]), default=start)
        if not refs or end <= start:
            return [InputPartition(None)]  # Spark would take "no partitions" for one with nothing to say
        count = max(2, sum(ref.bytes for ref in refs) // BATCH_READ_BYTES)
        return [InputPartition(share) for share in shares(start, end, refs, count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from . import views

        if partition.value is None:
            return iter(())
        return views.read(self.options, self._columns, partition.value)
