"""Parquet: a task stages typed rows as Parquet pieces; pieces of one table are merged into files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from ...changes.block import Window
from ...failpoints import failpoint
from ...marshal.json import lines
from ...marshal.typed import messages, typed
from ..api import Reject
from .names import MESSAGES, folder_of
from .place import Place, StageFile
from .stage import Piece
from .text import line_at, reject

GROUP = 32 << 20
"""Bytes in memory that become one row group, and a staged file of its own."""
HOLD = 128 << 20
"""Over all folders, no more than this is kept in memory."""


class ParquetRows:
    """Windows to typed rows, by folder."""

    def encode(self, window: Window, rejects: list[Reject]) -> Iterator[tuple[str, pa.RecordBatch]]:
        every = None
        for some in typed(window):
            if some.misfits and every is None:
                every = lines(window)
            rejects += [reject(line_at(every, m.order), m.reason) for m in some.misfits if every]
            if some.rows.num_rows:
                yield folder_of(some.relation.schema, some.relation.name), some.rows
        told = messages(window)
        if told.num_rows:
            yield MESSAGES, told


@dataclass(slots=True)
class _Growing:
    folder: str
    schema: pa.Schema
    held: list[pa.RecordBatch] = field(default_factory=list)
    held_bytes: int = 0
    rows: int = 0
    name: str = ""
    file: StageFile | None = None
    stream: Any = None
    writer: Any = None


class ParquetStage:
    """What `TextStage` is for text: much of one folder gets a file of its own, little of many shares
    one (each piece in it is a whole Parquet file)."""

    def __init__(self, place: Place, base: str, codec: str, limit: int) -> None:
        self._place = place
        self._base = base
        self._codec = codec
        self._limit = limit
        self._growing: dict[str, _Growing] = {}
        self._done: list[_Growing] = []
        self._held = 0
        self._files: list[str] = []

    def add(self, folder: str, rows: pa.RecordBatch) -> None:
        growing = self._growing.get(folder)
        full = growing is not None and growing.stream is not None and growing.stream.tell() >= self._limit
        if growing is None or full or not growing.schema.equals(rows.schema):
            if growing is not None:
                self._done.append(growing)
            growing = self._growing[folder] = _Growing(folder, rows.schema)
        growing.held.append(rows)
        growing.held_bytes += rows.nbytes
        growing.rows += rows.num_rows
        self._held += rows.nbytes
        if growing.held_bytes >= GROUP:
            self._spill(growing)
        elif self._held >= HOLD:
            for each in [*self._done, *self._growing.values()]:
                self._spill(each)

    def finish(self) -> list[Piece]:
        shared: StageFile | None = None
        shared_name, at = "", 0
        pieces = []
        for growing in [*self._done, *self._growing.values()]:
            schema = xxhash.xxh3_128_hexdigest(growing.schema.serialize())
            if growing.file is not None:
                self._spill(growing)
                growing.writer.close()
                size = growing.stream.tell()
                growing.file.close(durable=True)
                pieces.append(
                    Piece(growing.folder, growing.name, 0, size, 0, schema, growing.rows, whole=True)
                )
                continue
            if shared is None:
                shared_name = self._name()
                shared = self._place.stage(shared_name)
            buffer = pa.BufferOutputStream()
            with writer(buffer, growing.schema, self._codec) as parquet:
                parquet.write_table(pa.Table.from_batches(growing.held), row_group_size=1 << 30)
            data = memoryview(buffer.getvalue())
            shared.write(data)
            pieces.append(
                Piece(growing.folder, shared_name, at, len(data), 0, schema, growing.rows, whole=False)
            )
            at += len(data)
        if shared is not None:
            shared.close(durable=False)
        failpoint("sink.staged")
        return pieces

    def abort(self) -> None:
        for name in self._files:
            self._place.remove(name)

    def _spill(self, growing: _Growing) -> None:
        if not growing.held:
            return
        if growing.file is None:
            growing.name = self._name()
            growing.file = self._place.stage(growing.name)
            growing.stream = _Counted(growing.file)
            growing.writer = writer(pa.PythonFile(growing.stream, "w"), growing.schema, self._codec)
        growing.writer.write_table(pa.Table.from_batches(growing.held), row_group_size=1 << 30)
        self._held -= growing.held_bytes
        growing.held, growing.held_bytes = [], 0

    def _name(self) -> str:
        name = f"{self._base}.{len(self._files)}"
        self._files.append(name)
        return name


class _Counted:
    """A staged file as Parquet's writer wants it: a file object that knows where it stands."""

    closed = False

    def __init__(self, file: StageFile) -> None:
        self._file = file
        self._at = 0

    def write(self, data: bytes | memoryview) -> int:
        view = memoryview(data).cast("B")
        self._file.write(view)
        self._at += len(view)
        return len(view)

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        return

    def close(self) -> None:
        return


def writer(target: Any, schema: pa.Schema, codec: str) -> Any:
    return pq.ParquetWriter(target, schema, compression=codec.upper())


def merge(place: Place, pieces: Sequence[Piece], target: Any, codec: str) -> None:
    """Pieces of one schema into one file, in order, with row groups of a sensible size."""
    with ExitStack() as stack:
        out = None
        held: list[pa.Table] = []
        held_bytes = 0
        for piece in pieces:
            with place.source(piece.file) as source:
                source.seek(piece.offset)
                data = source if piece.whole else pa.BufferReader(source.read(piece.bytes))
                file = pq.ParquetFile(data)
                if out is None:
                    out = stack.enter_context(writer(target, file.schema_arrow, codec))
                for group in range(file.num_row_groups):
                    table = file.read_row_group(group)
                    held.append(table)
                    held_bytes += table.nbytes
                    if held_bytes >= GROUP:
                        out.write_table(pa.concat_tables(held), row_group_size=1 << 30)
                        held, held_bytes = [], 0
        if out is not None and held:
            out.write_table(pa.concat_tables(held), row_group_size=1 << 30)
