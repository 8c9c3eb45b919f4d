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

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..changes.block import I64, NULL, UNCHANGED, Block, Message, Op, Transactions, Window
from .arrays import quote
from .layout import HEAD, LINE, Layout, Layouts, members
from .space import Gathered, Space
from .stamps import lsn_stamps, member_stamps, times
from .values import rewrite

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
    put, bounds, places = _assemble(window, window.blocks, LINE)
    if len(window.blocks) == 1 and places is None and _rises(window.blocks[0].order):
        return Lines(put.view(), bounds)
    order = window.order()
    return _pick(put, bounds, order if places is None else places[order])


def lines_by_table(window: Window) -> dict[str, Lines]:
    """The same, apart for each table; messages under the label "" (they belong to none)."""
    put, bounds, places = _assemble(window, window.blocks, LINE)
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
        chosen = chosen[np.argsort(order[chosen])]
        out[label] = _pick(put, bounds, chosen if places is None else places[chosen])
    return out


def single(window: Window, block_index: int, row: int) -> str:
    """One change as JSON text, without an end of line: for errors and dead letters."""
    block = window.blocks[block_index].select(np.array([row]))
    put, _, _ = _assemble(window, [block], LINE)
    return put.bytes.tobytes().decode().removesuffix("\n")


def member(window: Window, block: Block, name: str) -> pa.Array:
    """`key`, `before`, `after` or `unchanged` of each row of a block as JSON text; null if absent."""
    put, bounds, places = _assemble(window, [block], (name,))
    texts, empty = _texts(put, bounds, pa.string()), np.diff(bounds) == 0
    rows = np.arange(len(empty)) if places is None else places
    return texts.take(pa.array(rows, mask=empty[rows]))


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
    space = Space(window, b"", np.empty(0, np.int32), 0, 2 * len(stamps.start))
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


def _rises(order: npt.NDArray[np.int32]) -> bool:
    return bool((order[1:] > order[:-1]).all())


def _texts(put: Gathered, bounds: I64, type: pa.DataType) -> pa.Array:
    large = len(put.bytes) >= 1 << 31
    if large:
        type = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}[type]
    offsets = pa.py_buffer(bounds if large else bounds.astype(np.int32))
    return pa.Array.from_buffers(type, len(bounds) - 1, [None, offsets, pa.py_buffer(put.bytes)])


def _pick(put: Gathered, bounds: I64, rows: npt.NDArray[np.intp]) -> Lines:
    picked = Gathered(pc.take(_texts(put, bounds, pa.binary()), pa.array(rows), boundscheck=False))
    return Lines(picked.view(), picked.relative.astype(np.int64))


@dataclass(slots=True)
class _Part:
    """Rows of one layout."""

    block: Block
    layout: Layout
    new: int = 0
    old: int = 0
    text: int = 0


def _assemble(
    window: Window, blocks: Sequence[Block], what: tuple[str, ...]
) -> tuple[Gathered, I64, npt.NDArray[np.intp] | None]:
    """The JSON of all rows and where each begins; and, if they do not stand block after block, where
    each row of the blocks is."""
    parts, places = _parts(blocks, what)
    transactions = window.transactions if what == LINE else None
    space = _space(window, parts, transactions)
    rewrite(space)
    widths = [1 if part.block.messages else part.layout.width(what == LINE) for part in parts]
    sizes = [len(part.block) * width for part, width in zip(parts, widths, strict=True)]
    index = np.empty(sum(sizes), np.int32)
    starts: list[I64] = []
    end = 0
    for part, width, size in zip(parts, widths, sizes, strict=True):
        mine = index[end : end + size].reshape(len(part.block), width)
        starts.append(np.arange(end, end + size, width))
        end += size
        if part.block.messages:
            mine[:, 0] = _messages(space, window, part.block, what)
        else:
            _values(part, mine[:, HEAD:] if what == LINE else mine)
    if transactions is not None:
        heads = [
            (part, start) for part, start in zip(parts, starts, strict=True) if not part.block.messages
        ]
        _heads(space, transactions, heads, index)
    put = space.put_together(index)
    bounds = put.relative[np.concatenate([*starts, np.array([end])])].astype(np.int64)
    return put, bounds, places


def _space(window: Window, parts: list[_Part], transactions: Transactions | None) -> Space:
    """The space with all texts and tuples of the parts."""
    values = sum(t.kinds.size for p in parts for t in (p.block.new, p.block.old) if t is not None)
    others = sum(2 * len(part.block.messages) for part in parts)
    if transactions is not None:
        # Two stamps a transaction, and the digits of every seq: no more than one a row, and a few.
        others += 4 * len(transactions.lsn) + _Sequences.most(sum(len(part.block) for part in parts))
    texts = b"".join([part.layout.texts for part in parts])
    lengths = np.concatenate([*(part.layout.lengths for part in parts), np.empty(0, np.int32)])
    space = Space(window, texts, lengths, values, others)
    text = space.text
    for part in parts:
        block = part.block
        part.text, text = text, text + len(part.layout.lengths)
        if block.new is not None and block.relation is not None:
            part.new = space.add_tuples(block.new, _layouts.codes(block.relation))
        if block.old is not None and block.relation is not None:
            part.old = space.add_tuples(block.old, _layouts.codes(block.relation))
    return space


def _parts(
    blocks: Sequence[Block], what: tuple[str, ...]
) -> tuple[list[_Part], npt.NDArray[np.intp] | None]:
    """Blocks split by which columns are not known, for those are another layout; where each row of the
    blocks then is, or None if nothing was split."""
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
    places = np.empty(first, np.intp)
    places[np.concatenate(rows)] = np.arange(first)
    return parts, places


def _patterns(block: Block) -> list[tuple[npt.NDArray[np.intp] | None, tuple[int, ...]]]:
    """Rows by which of their columns are not known: in practice one or two sets."""
    if block.new is None or not (unknown := block.new.kinds == UNCHANGED).any():
        return [(None, ())]
    columns = np.flatnonzero(unknown.any(axis=1))
    packed = np.packbits(unknown[columns], axis=0)
    keys = packed[0] if len(packed) == 1 else np.ascontiguousarray(packed.T).view(f"V{len(packed)}").ravel()
    _, sample, which = np.unique(keys, return_index=True, return_inverse=True)
    found = [tuple(columns[unknown[columns, row]].tolist()) for row in sample.tolist()]
    if len(found) == 1:
        return [(None, found[0])]
    return [(np.flatnonzero(which == number), pattern) for number, pattern in enumerate(found)]


_ABSENT = Layout(
    b"", np.zeros(5, np.int32), np.empty(0, np.int32), np.empty(0, np.int32), np.ones(1, np.int32)
)


class _Sequences:
    """The digits of every seq that occurs, and where those of each row are."""

    def __init__(self, seq: I64) -> None:
        first, last = int(seq.min()), int(seq.max())
        # Mostly from 0 up. The end of a huge transaction and the next one's beginning lie far apart.
        if last - first < len(seq):
            values, self.places = np.arange(first, last + 1), seq - first
        else:
            values, self.places = np.unique(seq, return_inverse=True)
        self.digits = Gathered(pa.array(values).cast(pa.string()).cast(pa.binary()))

    @staticmethod
    def most(rows: int) -> int:
        """Offsets they need at most."""
        return rows + 1


def _heads(
    space: Space, transactions: Transactions, parts: list[tuple[_Part, I64]], index: npt.NDArray[np.int32]
) -> None:
    """What every line begins with, for all rows at once: `parts` says where their pieces begin."""
    if not parts:
        return
    stamps = []
    for made in member_stamps(transactions):
        place = space.add(made.text.ravel()) + np.arange(len(made.start)) * made.width
        stamps.append(space.add_pairs(place + made.start, place + made.width))
    seqs = _Sequences(np.concatenate([part.block.seq for part, _ in parts]))
    digits = space.add_run(seqs.digits.relative, space.add(seqs.digits.bytes))
    at = np.concatenate([start for _, start in parts])
    of = np.concatenate([part.block.transaction for part, _ in parts])
    index[at] = np.repeat([part.text for part, _ in parts], [len(part.block) for part, _ in parts])
    index[at + 1] = stamps[0] + 2 * of
    index[at + 2] = digits + seqs.places
    index[at + 3] = stamps[1] + 2 * of


def _values(part: _Part, out: npt.NDArray[np.int32]) -> None:
    """The texts and values behind a line's head, as elements; one row of `out` each."""
    block, layout = part.block, part.layout
    rows, count = len(block), len(layout.column)
    first = part.new + (part.old - part.new) * layout.source + 2 * rows * layout.column
    # Computed value by value, where rows lie side by side, and turned only when stored.
    out[:, 1::2] = (first[:, None] + np.arange(0, 2 * rows, 2, dtype=np.int32)).T
    null = _null(block, layout)
    if null is None:
        out[:, 0::2] = part.text + layout.forms
        return
    form = np.zeros((count + 1, rows), np.uint8)
    form[:-1] = null
    form[1:] += null << 1
    out[:, 0::2] = (form + (part.text + layout.forms)[:, None]).T


def _null(block: Block, layout: Layout) -> npt.NDArray[np.uint8] | None:
    """Per value and row: 1 if it is NULL. None: no value of the block is."""
    out: npt.NDArray[np.uint8] | None = None
    for source, tuples in enumerate((block.new, block.old)):
        if tuples is None or not (null := tuples.kinds == NULL).any():
            continue
        mine = null[layout.column]
        if block.new is not None and block.old is not None:
            mine &= (layout.source == source)[:, None]
        out = mine.view(np.uint8) if out is None else out | mine.view(np.uint8)
    return out


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
    return np.arange(first, first + 2 * len(block), 2, dtype=np.int32)


def _message(message: Message, lsn: str, seq: int, xid: int, time: str) -> str:
    content, encoding = _content(message)
    return (
        f'{{"op":"{Op.MESSAGE.value}","lsn":"{lsn}","seq":{seq},'
        + (f'"xid":{xid},' if xid >= 0 else "")
        + f'"time":"{time}","prefix":{quote(message.prefix)},"content":{content}'
        + (f',"encoding":"{encoding}"' if encoding else "")
        + "}\n"
    )


def _content(message: Message) -> tuple[str, str]:
    try:
        return quote(message.content.decode()), ""
    except UnicodeDecodeError:
        return quote(base64.b64encode(message.content).decode()), "base64"
