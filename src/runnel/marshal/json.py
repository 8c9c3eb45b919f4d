"""The default JSON of changes: windows in, JSON lines (or JSON members in columns) out.

Members, in this order: op, schema, table, lsn, seq, xid, time, key, before, after, unchanged.
`key`: the key's values after the change (before a delete). `before`: what the WAL has of the old row.
`after`: the new row, but for the columns in `unchanged`: those that the WAL left out and the old row
does not tell either. What a change does not have is absent. A message has no schema and table, but
`prefix` and `content` behind `time`; content that is no UTF-8 is base64 and `"encoding":"base64"`
follows. A non-transactional message has no xid, and `time` is when the server sent it.

How: the index of every piece of the output (fixed texts, stamps, values) is laid out in one array, and
one `take` over the `Space` copies them; its data is the output. No Python per row.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..changes.block import I64, NULL, UNCHANGED, Block, Message, Op, Transactions, Window
from .layout import LINE, OLD, Layout, Layouts, members, quoted
from .space import Gathered, Space
from .stamps import lsn_stamps, member_stamps, times
from .values import Rewriter

_HEAD = 4
"""Pieces before the first member: op to lsn, the LSN, seq, xid and time."""
_layouts = Layouts()


@dataclass(slots=True)
class Lines:
    data: memoryview
    """All lines, each with its newline."""
    offsets: I64
    """Where each line begins in `data`, and the end of the last."""

    def __len__(self) -> int:
        return len(self.offsets) - 1


def lines(window: Window) -> Lines:
    """Every change of the window as a line of JSON, in order of (lsn, seq) over all tables."""
    put, bounds = _assemble(window, window.blocks, LINE)
    if len(window.blocks) == 1 and len(bounds) == window.changes + 1 and not _shuffled(window):
        return _lines(put, bounds)
    return _pick(put, bounds, window.order())


def lines_by_table(window: Window) -> dict[str, Lines]:
    """The same, apart for each table; messages under the label "" (they belong to none)."""
    put, bounds = _assemble(window, window.blocks, LINE)
    rows: dict[str, list[npt.NDArray[np.intp]]] = {}
    order = np.concatenate([block.order for block in window.blocks]) if window.blocks else np.empty(0)
    first = 0
    for block in window.blocks:
        label = block.relation.label if block.relation is not None else ""
        rows.setdefault(label, []).append(np.arange(first, first + len(block)))
        first += len(block)
    out: dict[str, Lines] = {}
    for label, found in rows.items():
        chosen = np.concatenate(found)
        out[label] = _pick(put, bounds, chosen[np.argsort(order[chosen])])
    return out


def single(window: Window, block_index: int, row: int) -> str:
    """One change as JSON text, without an end of line: for errors and dead letters."""
    block = window.blocks[block_index].select(np.array([row]))
    put, _ = _assemble(window, [block], LINE)
    return put.bytes.tobytes().decode().removesuffix("\n")


def member(window: Window, block: Block, name: str) -> pa.Array:
    """`key`, `before`, `after` or `unchanged` of each row of a block as JSON text; null if absent."""
    put, bounds = _assemble(window, [block], (name,))
    texts = _texts(put, bounds, pa.string())
    empty = np.diff(bounds) == 0
    return pc.if_else(pa.array(~empty), texts, None) if empty.any() else texts


def changes(window: Window) -> pa.RecordBatch:
    """The window as a table of changes in order: the JSON's members as columns, key to unchanged as
    JSON text. Messages have their prefix as `table` and their content as `after`."""
    order = pa.array(window.order())
    blocks = window.blocks

    def column(parts: list[pa.Array], type: pa.DataType) -> pa.Array:
        return pa.concat_arrays([part.cast(type) for part in parts] or [pa.array([], type)]).take(order)

    def repeated(values: list[str | None]) -> pa.Array:
        sizes = [len(block) for block in blocks]
        return pa.array(values, pa.string()).take(pa.array(np.repeat(np.arange(len(sizes)), sizes)))

    transactions = window.transactions
    of = np.concatenate([block.transaction for block in blocks]) if blocks else np.empty(0, np.int32)
    stamps = lsn_stamps(transactions.lsn, "")
    width = np.arange(len(stamps.start)) * stamps.width
    space = Space(window, b"", np.empty(0, np.int32), 2 * len(stamps.start))
    place = space.add(stamps.text.ravel())
    first = space.add_pairs(place + width + stamps.start, place + width + stamps.width)
    lsn = space.put_together(first + 2 * of).array.cast(pa.string())
    xid = transactions.xid[of]
    time = pa.array(transactions.time[of]).cast(pa.timestamp("us", "UTC"))
    names = ("key", "before", "after", "unchanged")
    return pa.RecordBatch.from_pydict(
        {
            "op": repeated([block.op.value for block in blocks]).take(order),
            "schema": repeated([b.relation.schema if b.relation else None for b in blocks]).take(order),
            "table": column([_table(block) for block in blocks], pa.string()),
            "lsn": lsn.take(order),
            "seq": column([pa.array(block.seq) for block in blocks], pa.int64()),
            "xid": pa.array(xid, mask=xid < 0).take(order),
            "time": time.take(order),
            **{
                name: column([member(window, block, name) for block in blocks], pa.string())
                for name in names
            },
        }
    )


def _table(block: Block) -> pa.Array:
    if block.relation is None:
        return pa.array([message.prefix for message in block.messages], pa.string())
    return pa.repeat(block.relation.name, len(block))


def _shuffled(window: Window) -> bool:
    order = window.blocks[0].order
    return bool((order[1:] < order[:-1]).any())


def _lines(put: Gathered, bounds: I64) -> Lines:
    return Lines(memoryview(put.bytes), bounds)  # type: ignore[arg-type]


def _texts(put: Gathered, bounds: I64, type: pa.DataType) -> pa.Array:
    large = len(put.bytes) >= 1 << 31
    if large:
        type = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}[type]
    offsets = pa.py_buffer(bounds if large else bounds.astype(np.int32))
    return pa.Array.from_buffers(type, len(bounds) - 1, [None, offsets, pa.py_buffer(put.bytes)])


def _pick(put: Gathered, bounds: I64, rows: npt.NDArray[np.intp]) -> Lines:
    picked = Gathered(pc.take(_texts(put, bounds, pa.binary()), pa.array(rows), boundscheck=False))
    return _lines(picked, picked.relative.astype(np.int64))


@dataclass(slots=True)
class _Part:
    """Rows of one layout."""

    block: Block
    layout: Layout
    new: int = 0
    old: int = 0
    text: int = 0


def _assemble(window: Window, blocks: Sequence[Block], what: tuple[str, ...]) -> tuple[Gathered, I64]:
    """The JSON of all rows, block after block, and where each begins."""
    parts, back = _parts(blocks, what)
    whole = what == LINE
    transactions = len(window.transactions.lsn)
    lengths = [part.layout.lengths for part in parts]
    seqs = _Sequences(blocks if whole else ())
    size = sum(t.places.size for p in parts for t in (p.block.new, p.block.old) if t is not None)
    size += 4 * transactions + len(seqs.values) + 1 + 2 * sum(len(b.messages) for b in blocks)
    texts = b"".join(part.layout.texts for part in parts)
    space = Space(window, texts, np.concatenate([*lengths, np.empty(0, np.int32)]), size)
    rewriter, text = Rewriter(), space.text
    for part in parts:
        block = part.block
        part.text, text = text, text + len(part.layout.lengths)
        if block.relation is None:
            continue
        kinds = _layouts.kinds(block.relation)
        if block.new is not None:
            part.new = space.add_tuples(block.new)
            rewriter.collect(kinds, part.new, len(block))
        if block.old is not None:
            part.old = space.add_tuples(block.old)
            rewriter.collect(kinds, part.old, len(block))
    rewriter.rewrite(space)
    head = _heads(space, window.transactions, seqs) if whole else None
    pieces = [
        _messages(space, window, part.block, what) if part.block.messages else _pieces(part, head)
        for part in parts
    ]
    index = np.concatenate([piece.ravel() for piece in pieces] or [np.empty(0, np.int32)])
    put = space.put_together(index)
    bounds = _bounds(put, [piece.shape for piece in pieces])
    if back is None:
        return put, bounds
    picked = Gathered(pc.take(_texts(put, bounds, pa.binary()), pa.array(back), boundscheck=False))
    return picked, picked.relative.astype(np.int64)


def _parts(
    blocks: Sequence[Block], what: tuple[str, ...]
) -> tuple[list[_Part], npt.NDArray[np.intp] | None]:
    """Blocks split by which columns are not known, for those are another layout; how to put the rows
    back into the blocks' order, or None if nothing was split."""
    parts: list[_Part] = []
    rows: list[npt.NDArray[np.intp]] = []
    first, split = 0, False
    for block in blocks:
        for chosen, unknown in _patterns(block):
            part = block if chosen is None else block.select(chosen)
            split |= chosen is not None
            rows.append(first + (np.arange(len(block)) if chosen is None else chosen))
            there = block.relation is not None and (what == LINE or what[0] in members(part, unknown))
            layout = _layouts.find(part, unknown, what) if there else _ABSENT
            parts.append(_Part(part, layout))
        first += len(block)
    if not split:
        return parts, None
    back = np.empty(first, np.intp)
    back[np.concatenate(rows)] = np.arange(first)
    return parts, back


def _patterns(block: Block) -> list[tuple[npt.NDArray[np.intp] | None, tuple[int, ...]]]:
    if block.new is None or not (unknown := block.new.kinds == UNCHANGED).any():
        return [(None, ())]
    packed, which = np.unique(np.packbits(unknown, axis=0), axis=1, return_inverse=True)
    columns = np.unpackbits(packed, axis=0, count=len(unknown))
    if columns.shape[1] == 1:
        return [(None, tuple(np.flatnonzero(columns[:, 0]).tolist()))]
    which = which.ravel()
    return [
        (np.flatnonzero(which == number), tuple(np.flatnonzero(columns[:, number]).tolist()))
        for number in range(columns.shape[1])
    ]


_ABSENT = Layout(b"", np.zeros(5, np.int32), np.empty(0, np.int32), np.empty(0, np.int32))


class _Sequences:
    """The digits of every seq that occurs."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        found = np.concatenate([*(block.seq for block in blocks), np.empty(0, np.int64)])
        first, last = (int(found.min()), int(found.max())) if len(found) else (0, -1)
        # Mostly from 0 up. The end of a huge transaction and the next one's beginning lie far apart.
        self.dense = last - first <= 4 * len(found)
        self.values = np.arange(first, last + 1) if self.dense else np.unique(found)
        self.digits = Gathered(pa.array(self.values).cast(pa.string()).cast(pa.binary()))

    def of(self, seq: I64) -> I64:
        if self.dense:
            return seq - self.values[0] if len(seq) else seq
        return np.searchsorted(self.values, seq)


@dataclass(slots=True)
class _Heads:
    lsn: int
    seq: int
    rest: int
    seqs: _Sequences


def _heads(space: Space, transactions: Transactions, seqs: _Sequences) -> _Heads:
    """Elements of what every line begins with."""
    found = []
    for stamps in member_stamps(transactions):
        place = space.add(stamps.text.ravel()) + np.arange(len(stamps.start)) * stamps.width
        found.append(space.add_pairs(place + stamps.start, place + stamps.width))
    seq = space.add_run(seqs.digits.relative, space.add(seqs.digits.bytes))
    return _Heads(found[0], seq, found[1], seqs)


def _pieces(part: _Part, head: _Heads | None) -> npt.NDArray[np.int32]:
    """The elements of each row's JSON, one row of the matrix each."""
    block, layout = part.block, part.layout
    rows, values, lead = len(block), len(layout.column), _HEAD if head is not None else 0
    out = np.empty((rows, lead + 2 * values + 1), np.int32)
    if head is not None:
        out[:, 0] = part.text
        out[:, 1] = head.lsn + 2 * block.transaction
        out[:, 2] = head.seq + head.seqs.of(block.seq)
        out[:, 3] = head.rest + 2 * block.transaction
    texts = part.text + 1 + 4 * np.arange(values + 1, dtype=np.int32)
    first = np.where(layout.source == OLD, part.old, part.new) + 2 * rows * layout.column
    out[:, lead + 1 :: 2] = np.arange(0, 2 * rows, 2, dtype=np.int32)[:, None] + first.astype(np.int32)
    null = _null(block, layout)
    if null is None:
        out[:, lead::2] = texts
    else:
        form = np.zeros((values + 1, rows), np.int32)
        form[:-1] += null
        form[1:] += 2 * null
        form += texts[:, None]
        out[:, lead::2] = form.T
    return out


def _null(block: Block, layout: Layout) -> npt.NDArray[np.bool_] | None:
    """Per value and row of the layout: is it NULL? None if no value is."""
    out: npt.NDArray[np.bool_] | None = None
    for source, tuples in enumerate((block.new, block.old)):
        if tuples is None:
            continue
        kinds = (
            tuples.kinds[list(tuples.present)] if len(tuples.present) < len(tuples.kinds) else tuples.kinds
        )
        if not (kinds == NULL).any():
            continue
        if out is None:
            out = np.zeros((len(layout.column), len(block)), np.bool_)
        chosen = layout.source == source
        out[chosen] = tuples.kinds[layout.column[chosen]] == NULL
    return out


def _bounds(put: Gathered, shapes: list[tuple[int, ...]]) -> I64:
    found: list[npt.NDArray[Any]] = []
    offsets, at = put.relative, 0
    for rows, width in shapes:
        found.append(offsets[at : at + rows * width : width])
        at += rows * width
    return np.concatenate([*found, offsets[-1:]]).astype(np.int64)


def _messages(space: Space, window: Window, block: Block, what: tuple[str, ...]) -> npt.NDArray[np.int32]:
    """Messages one by one: each is a text of its own, and they are few."""
    if what == LINE:
        lsn = lsn_stamps(window.lsn(block), "")
        time = times(window.time(block))
        texts = [
            _message(
                message,
                lsn.text[row, int(lsn.start[row]) :].tobytes().decode(),
                int(block.seq[row]),
                int(window.xid(block)[row]),
                time[row].tobytes().decode(),
            )
            for row, message in enumerate(block.messages)
        ]
    else:
        texts = [_content(message)[0] if what == ("after",) else "" for message in block.messages]
    found = Gathered(pa.array([text.encode() for text in texts], pa.binary()))
    place = space.add(found.bytes)
    first = space.add_pairs(place + found.relative[:-1], place + found.relative[1:])
    return np.arange(first, first + 2 * len(block), 2, dtype=np.int32)[:, None]


def _message(message: Message, lsn: str, seq: int, xid: int, time: str) -> str:
    content, encoding = _content(message)
    return (
        f'{{"op":"{Op.MESSAGE.value}","lsn":"{lsn}","seq":{seq},'
        + (f'"xid":{xid},' if xid >= 0 else "")
        + f'"time":"{time}","prefix":{quoted(message.prefix)},"content":{content}'
        + (f',"encoding":"{encoding}"' if encoding else "")
        + "}\n"
    )


def _content(message: Message) -> tuple[str, str]:
    try:
        return quoted(message.content.decode()), ""
    except UnicodeDecodeError:
        return quoted(base64.b64encode(message.content).decode()), "base64"
