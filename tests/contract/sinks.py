"""How the conformance suite sees a sink, and a pipeline without Spark that drives it.

To add a sink: write a `Target` for it and put it into `TARGETS`. `drive` does what a pipeline does:
opens, begins where the authority says, runs tasks by the sink's plan, commits, stores the position.
`python -m contract.sinks NAME DIRECTORY` (from `tests`) drives the whole history in a process of its own,
so that a failpoint can kill it.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from pyarrow import fs

from contract import sqlite_sinks
from runnel.changes.block import Window
from runnel.errors import Refused
from runnel.failpoints import failpoint
from runnel.log.api import Lineage
from runnel.postgres.lsn import Lsn
from runnel.progress.position import Position
from runnel.sinks.api import Attempt, Batch, Plan, Receipt, Sink, Writer
from runnel.sinks.files import sink as files
from runnel.sinks.files.remote import RemotePlace
from runnel.sinks.files.settings import FilesSettings
from runnel.sinks.files.whole import WholeFiles
from runnel.sinks.registry import SINKS, SinkContext
from runnel.sinks.stdout import sink as stdout
from runnel.sinks.stdout.settings import StdoutSettings
from runnel.spark.keyed import part, ties_keys
from windows import Transaction, delete, insert, relation, truncate, update, window

Name = tuple[int, int]
"""(lsn, seq) names a change."""

LINEAGE = Lineage("7400000000000000001", 1, "shop_1f2e3d4c")
ORIGIN = Lsn(0x1000)


class Target(Protocol):
    """One target in a directory of its own."""

    def sink(self) -> Sink: ...

    def writer(self, task: Mapping[str, Any], attempt: Attempt) -> Writer: ...

    def seen(self) -> list[Name]:
        """What a plain reader finds, in the order in which it finds it."""
        ...


# --- the history every sink is given


ORDERS = relation("orders", {"id": "int8", "total": "numeric"})
NAMED = relation('odd "näme"./', {"id": "int4", "value": "text"}, schema="Sales")


def history(count: int = 12) -> list[Transaction]:
    """Three tables; the row with id 1 of `items` changes in every transaction."""
    out = []
    for n in range(count):
        changes = [
            insert(1, "hot") if n == 0 else update(1, f"hot {n}"),
            insert(100 + n, 'quote " backslash \\ line\nend'),
            insert(n, f"{n}.50", into=ORDERS),
            insert(n, None, into=NAMED),
        ]
        if n % 3 == 2:
            changes.append(delete(100 + n))
        if n % 5 == 4:
            changes.append(truncate(NAMED))
        out.append(Transaction(0x1000 + 0x100 * n, tuple(changes)))
    return out


def names(transactions: Iterable[Transaction]) -> list[Name]:
    return [(t.lsn, seq) for t in transactions for seq in range(t.first_seq, t.first_seq + len(t.changes))]


def batch_of(start: Lsn, transactions: Sequence[Transaction]) -> Batch:
    return Batch(start, Lsn(transactions[-1].end), 1, 2)


# --- a pipeline without Spark


@dataclass
class Progress:
    """Stands for `runnel.progress`: a file, with the epoch as compare-and-set."""

    path: Path

    def load(self) -> Position:
        if self.path.exists():
            return Position.from_json(json.loads(self.path.read_text()))
        return Position(LINEAGE, 0, ORIGIN)

    def claim(self) -> Position:
        position = self.load()
        return self._write(replace(position, epoch=position.epoch + 1))

    def store(self, position: Position) -> None:
        if self.load().epoch != position.epoch:
            raise Refused("the pipeline was taken over")
        self._write(position)

    def _write(self, position: Position) -> Position:
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps(position.to_json()))
        os.replace(temporary, self.path)
        return position


class Pipeline:
    """One owner of a target."""

    def __init__(self, target: Target, directory: Path) -> None:
        self.target = target
        self.progress = Progress(directory / "progress.json")
        self.sink = target.sink()
        claimed = self.progress.claim()
        self.position = self.sink.open(claimed)
        assert self.position.epoch == claimed.epoch
        self.accepted = self.position.lsn

    def run(self, transactions: Sequence[Transaction], size: int = 4) -> None:
        """What is not yet delivered, in batches of `size` transactions."""
        rest = [t for t in transactions if t.end > self.accepted]
        for at in range(0, len(rest), size):
            some = rest[at : at + size]
            batch = batch_of(self.accepted, some)
            self.commit(batch, self.tasks(batch, some))

    def tasks(self, batch: Batch, transactions: Sequence[Transaction]) -> list[Receipt]:
        shares: Sequence[Sequence[Window]]
        match self.sink.capabilities.plan:
            case Plan.STAGED:  # by chunk: two transactions each, one window for each
                shares = [
                    [window(t) for t in transactions[at : at + 2]] for at in range(0, len(transactions), 2)
                ]
            case Plan.SINGLE:
                shares = [[window(t) for t in transactions]]
            case Plan.KEYED:
                tied = any(ties_keys(window(t)) for t in transactions)
                shares = [[_of_task(window(t), task, tied) for t in transactions] for task in range(2)]
        return [self.task(batch, index, share) for index, share in enumerate(shares)]

    def task(self, batch: Batch, index: int, windows: Sequence[Window]) -> Receipt:
        attempt = Attempt(batch.start, batch.end, index, uuid.uuid4().hex)
        writer = self.target.writer(self.sink.task(), attempt)
        try:
            for each in windows:
                assert not writer.write(each)
            payload = json.loads(json.dumps(dict(writer.finish())))  # receipts travel as JSON
        except BaseException:
            writer.abort()
            raise
        return Receipt(index, sum(w.changes for w in windows), payload)

    def commit(self, batch: Batch, receipts: Sequence[Receipt]) -> None:
        self._store(self.sink.commit(batch, receipts))
        self.accepted = max(self.accepted, batch.end)

    def flush(self) -> None:
        self._store(self.sink.flush())

    def _store(self, lsn: Lsn) -> None:
        failpoint("progress.before")
        self.progress.store(self.position.at(lsn))

    def close(self) -> None:
        self.sink.close()


def _of_task(whole: Window, task: int, tied: bool) -> Window:
    """What a task of two takes: a key is always the same one's, and what ties keys together the first's."""
    return part(whole, task, 1 if tied else 2)


# --- targets


@dataclass
class FilesTarget:
    directory: Path
    settings: dict[str, Any]

    def _settings(self) -> FilesSettings:
        return FilesSettings(path=str(self.directory / "out"), **self.settings)

    def sink(self) -> Sink:
        return SINKS["files"].sink(self._settings(), SinkContext("p", str(self.directory / "unused")))

    def writer(self, task: Mapping[str, Any], attempt: Attempt) -> Writer:
        return SINKS["files"].writer(json.loads(json.dumps(task)), attempt)

    def seen(self) -> list[Name]:
        root = self.directory / "out"
        settings = self._settings()
        found = sorted(
            (p for p in root.glob("*/*" if settings.by_table else "*") if p.is_file()),
            key=lambda p: p.name,
        )
        found = [p for p in found if not str(p.relative_to(root)).startswith("_")]
        if not settings.by_table:
            return [name for path in found for name in read(path)]
        folders: dict[str, list[Name]] = {}
        for path in found:
            folders.setdefault(path.parent.name, []).extend(read(path))
        for folder, some in folders.items():
            assert list(dict.fromkeys(some)) == sorted(set(some)), f"{folder} is not in commit order"
        return sorted(name for some in folders.values() for name in some)


class RemoteTarget(FilesTarget):
    """An object store, played by a directory: whole objects only, through pyarrow's file system."""

    def _settings(self) -> FilesSettings:
        return FilesSettings(path="s3://bucket/out", **self.settings)

    def _place(self) -> RemotePlace:
        return _Objects("s3://bucket/out", fs.LocalFileSystem(), str(self.directory / "out"))

    def sink(self) -> Sink:
        return WholeFiles(self._settings(), self._place(), "p")

    def writer(self, task: Mapping[str, Any], attempt: Attempt) -> Writer:
        return files.writer(json.loads(json.dumps(task)), attempt, self._place())


class _Objects(RemotePlace):
    def _at(self, name: str) -> str:
        path = super()._at(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)  # an object store has no directories
        return path


def read(path: Path) -> Iterator[Name]:
    """What a plain reader makes of one file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.name.endswith(".parquet"):
        table = pq.read_table(path, partitioning=None)
        for lsn, seq in zip(table["_lsn"].to_pylist(), table["_seq"].to_pylist(), strict=True):
            yield int(lsn) if not isinstance(lsn, str) else int(Lsn.parse(lsn)), seq
        return
    data = path.read_bytes()
    if path.name.endswith(".gz"):
        data = gzip.decompress(data)
    elif path.name.endswith(".zst"):
        data = pa.input_stream(pa.BufferReader(data), compression="zstd").read()
    text = data.decode()
    if ".csv" in path.name:
        for row in csv.DictReader(text.splitlines(keepends=True)):
            yield int(Lsn.parse(row.get("lsn") or row["_lsn"])), int(row.get("seq") or row["_seq"])
    else:
        yield from parsed(text)


def parsed(text: str) -> Iterator[Name]:
    for line in text.splitlines():
        change = json.loads(line)
        yield int(Lsn.parse(change["lsn"])), change["seq"]


@dataclass
class StdoutTarget:
    directory: Path

    def sink(self) -> Sink:
        fd = os.open(self.directory / "stdout", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        return _ClosingStdout(StdoutSettings(), str(self.directory / "stage"), fd)

    def writer(self, task: Mapping[str, Any], attempt: Attempt) -> Writer:
        return SINKS["stdout"].writer(json.loads(json.dumps(task)), attempt)

    def seen(self) -> list[Name]:
        return list(parsed((self.directory / "stdout").read_text()))


class _ClosingStdout(stdout.Stdout):
    def close(self) -> None:
        os.close(self._fd)


@dataclass
class SqliteTarget:
    directory: Path
    make_sink: Callable[[str], Sink]
    make_writer: Callable[[Mapping[str, Any], Attempt], Writer]

    def sink(self) -> Sink:
        return self.make_sink(str(self.directory / "target.db"))

    def writer(self, task: Mapping[str, Any], attempt: Attempt) -> Writer:
        return self.make_writer(task, attempt)

    def seen(self) -> list[Name]:
        database = sqlite_sinks.connect(str(self.directory / "target.db"))
        rows = database.execute("SELECT line FROM changes ORDER BY n").fetchall()
        database.close()
        return list(parsed("\n".join(row[0] for row in rows)))


def _files(**settings: Any) -> Callable[[Path], Target]:
    return lambda directory: FilesTarget(directory, settings)


TARGETS: dict[str, Callable[[Path], Target]] = {
    "files-jsonl": _files(),
    "files-jsonl-tiny": _files(roll_bytes=600),
    "files-jsonl-table": _files(layout="table", roll_bytes=700),
    "files-jsonl-gzip": _files(compression="gzip"),
    "files-jsonl-zstd-table": _files(compression="zstd", layout="table"),
    "files-csv": _files(format="csv", roll_bytes=2000),
    "files-csv-table-gzip": _files(format="csv", layout="table", compression="gzip"),
    "files-parquet": _files(format="parquet"),
    "files-parquet-tiny": _files(format="parquet", roll_bytes=1),
    "files-remote": lambda directory: RemoteTarget(directory, {}),
    "files-remote-csv-table-zstd": lambda directory: RemoteTarget(
        directory, {"format": "csv", "layout": "table", "compression": "zstd", "roll_bytes": 1500}
    ),
    "files-remote-parquet": lambda directory: RemoteTarget(directory, {"format": "parquet"}),
    "stdout": StdoutTarget,
    "test-single": lambda directory: SqliteTarget(
        directory, sqlite_sinks.SingleSink, sqlite_sinks.SingleWriter
    ),
    "test-keyed": lambda directory: SqliteTarget(
        directory, sqlite_sinks.KeyedSink, sqlite_sinks.KeyedWriter
    ),
}


def main(name: str, place: str) -> None:
    directory = Path(place)
    pipeline = Pipeline(TARGETS[name](directory), directory)
    pipeline.run(history())
    pipeline.flush()
    pipeline.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
