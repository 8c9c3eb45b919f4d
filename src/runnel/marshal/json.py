"""The default JSON of changes: windows in, JSON lines (or JSON members in columns) out.

Members, in this order: op, schema, table, lsn, seq, xid, time, key, before, after, unchanged.
`key`: the key's values after the change (before a delete). `before`: what the WAL has of the old row.
`after`: the new row, but for the columns in `unchanged`: those that the WAL left out and the old row
does not tell either. What a change does not have is absent. A message has no schema and table, but
`prefix` and `content` behind `time`; content that is no UTF-8 is base64 and `"encoding":"base64"`
follows. A non-transactional message has no xid, and `time` is when the server sent it.

How: the index of every piece of the output (fixed texts, stamps, values) is laid out in one array, and
one `take` over the `Space` copies them; its data is the output. No Python per row. A table costs no
more than the look-up of its layout: the rows of a sheet are laid out together, each picks its texts.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..changes.block import I32, I64, NULL, UNCHANGED, Block, Mask, Message, Op, Sheet, Transactions, Window
from .arrays import quote
from .layout import HEAD, LINE, MEMBERS, Body, Kind, Layouts
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
    put, bounds = _assemble(window, window.sheets, LINE)
    return Lines(put.view(), bounds) if len(window.sheets) == 1 else _pick(put, bounds, window.order())


def lines_by_table(window: Window) -> dict[str, Lines]:
    """The same, apart for each table; messages under the label "" (they belong to none)."""
    if not window.sheets:
        return {}
    put, bounds = _assemble(window, window.sheets, LINE)
    labels: dict[str, int] = {}
    tables, orders = [], []
    for sheet in window.sheets:
        names = [relation.label for relation in sheet.relations] or [""]
        tables.append(np.array([labels.setdefault(name, len(labels)) for name in names])[sheet.which])
        orders.append(sheet.order)
    table = np.concatenate(tables)
    every = _pick(put, bounds, np.lexsort((np.concatenate(orders), table)))
    ends = np.cumsum(np.bincount(table, minlength=len(labels))).tolist()
    out: dict[str, Lines] = {}
    first = 0
    for label, end in zip(labels, ends, strict=True):
        offsets = every.offsets[first : end + 1]
        first = end
        # A copy: who holds back one table's lines shall not keep those of all others in memory.
        mine = every.data[offsets[0] : offsets[-1]].tobytes()
        out[label] = Lines(memoryview(mine), offsets - offsets[0])
    return out


def single(window: Window, block_index: int, row: int) -> str:
    """One change as JSON text, without an end of line: for errors and dead letters."""
    sheet = Sheet.of(window.blocks[block_index]).select(np.array([row]))
    put, _ = _assemble(window, [sheet], LINE)
    return put.bytes.tobytes().decode().removesuffix("\n")


def member(window: Window, rows: Block | Sheet, name: str) -> pa.Array:
    """`key`, `before`, `after` or `unchanged` of each row as JSON text; null if absent."""
    return _member(window, [Sheet.of(rows) if isinstance(rows, Block) else rows], name)


def _member(window: Window, sheets: Sequence[Sheet], name: str) -> pa.Array:
    put, bounds = _assemble(window, sheets, (name,))
    empty = np.diff(bounds) == 0
    return _texts(put, bounds, pa.string()).take(pa.array(np.arange(len(empty)), mask=empty))


def changes(window: Window) -> pa.RecordBatch:
    """The window as a table of changes in order: the JSON's members as columns, key to unchanged as
    JSON text. Messages have their prefix as `table` and their content as `after`."""
    order = pa.array(window.order())
    sheets = window.sheets

    def column(parts: list[pa.Array], type: pa.DataType) -> pa.Array:
        return pa.concat_arrays([part.cast(type) for part in parts] or [pa.array([], type)]).take(order)

    def each(sheet: Sheet, values: list[str | None]) -> pa.Array:
        return pa.array(values or [None], pa.string()).take(pa.array(sheet.which))

    transactions = window.transactions
    of = np.concatenate([np.empty(0, np.int32), *(sheet.transaction for sheet in sheets)])
    stamps = lsn_stamps(transactions.lsn, "")
    width = np.arange(len(stamps.start)) * stamps.width
    space = Space(window, (), np.empty(0, np.int32), 0, 2 * len(stamps.start))
    place = space.add(stamps.text.ravel())
    first = space.add_pairs(place + width + stamps.start, place + width + stamps.width)
    lsn = space.put_together(first + 2 * of).array.cast(pa.string())
    xid = transactions.xid[of]
    time = pa.array(transactions.time[of]).cast(pa.timestamp("us", "UTC"))
    return pa.RecordBatch.from_pydict(
        {
            "op": column([pa.repeat(sheet.op.value, len(sheet)) for sheet in sheets], pa.string()),
            "schema": column([each(s, [r.schema for r in s.relations]) for s in sheets], pa.string()),
            "table": column(
                [
                    pa.array([message.prefix for message in s.messages], pa.string())
                    if s.messages
                    else each(s, [r.name for r in s.relations])
                    for s in sheets
                ],
                pa.string(),
            ),
            "lsn": lsn.take(order),
            "seq": column([pa.array(sheet.seq) for sheet in sheets], pa.int64()),
            "xid": pa.array(xid, mask=xid < 0).take(order),
            "time": time.take(order),
            **{name: _member(window, sheets, name).cast(pa.string()).take(order) for name in MEMBERS},
        }
    )


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
    """A sheet and how its rows are put together."""

    sheet: Sheet
    heads: list[bytes]
    bodies: list[Body]
    """Those that occur, with the same values in the same places; none for messages."""
    head: I32
    """Per row: index into `heads`. One number for all rows if there is one head."""
    body: I32
    """The same for `bodies`."""
    new: int = 0
    old: int = 0
    text: int = 0

    def head_texts(self) -> I32:
        """Per row, or one for all: the element of its head."""
        return self.text + self.head

    def body_texts(self) -> I32:
        """The same for the first text of its body."""
        return self.text + len(self.heads) + self.bodies[0].count * self.body

    def codes(self) -> npt.NDArray[np.uint16]:
        """Per column, and per row where tables differ: what has to be done with its values."""
        distinct = {body.codes for body in self.bodies}
        found = np.frombuffer(b"".join([body.codes for body in self.bodies]), np.uint16)
        by_column = found.reshape(len(self.bodies), -1).T
        return by_column[:, :1] if len(distinct) == 1 else by_column[:, self.body]


def _assemble(window: Window, sheets: Sequence[Sheet], what: tuple[str, ...]) -> tuple[Gathered, I64]:
    """The JSON of all rows, sheet after sheet, and where each begins."""
    parts = [_part(sheet, what) for sheet in sheets]
    transactions = window.transactions if what == LINE else None
    space = _space(window, parts, transactions)
    rewrite(space)
    widths = [part.bodies[0].width(what == LINE) if part.bodies else 1 for part in parts]
    sizes = [len(part.sheet) * width for part, width in zip(parts, widths, strict=True)]
    index = np.empty(sum(sizes), np.int32)
    starts: list[I64] = []
    end = 0
    for part, width, size in zip(parts, widths, sizes, strict=True):
        mine = index[end : end + size].reshape(len(part.sheet), width)
        starts.append(np.arange(end, end + size, width))
        end += size
        if part.bodies:
            _values(part, mine[:, HEAD:] if what == LINE else mine)
        else:
            mine[:, 0] = _messages(space, window, part.sheet, what)
    if transactions is not None:
        _heads(
            space,
            transactions,
            [pair for pair in zip(parts, starts, strict=True) if pair[0].bodies],
            index,
        )
    put = space.put_together(index)
    bounds = put.relative[np.concatenate([*starts, np.array([end])])].astype(np.int64)
    return put, bounds


def _space(window: Window, parts: list[_Part], transactions: Transactions | None) -> Space:
    """The space with all texts and tuples of the parts."""
    values = sum(t.kinds.size for p in parts for t in (p.sheet.new, p.sheet.old) if t is not None)
    others = sum(2 * len(part.sheet.messages) for part in parts)
    if transactions is not None:
        # Two stamps a transaction, and the digits of every seq: no more than one a row, and a few.
        others += 4 * len(transactions.lsn) + _Sequences.most(sum(len(part.sheet) for part in parts))
    texts: list[bytes] = []
    lengths: list[bytes] = []
    text = Space.TEXT
    for part in parts:
        texts += part.heads
        texts += [body.texts for body in part.bodies]
        lengths.append(np.array([len(head) for head in part.heads], np.int32).tobytes())
        lengths += [body.lengths for body in part.bodies]
        part.text, text = text, text + len(part.heads) + sum(body.count for body in part.bodies)
    space = Space(window, texts, np.frombuffer(b"".join(lengths), np.int32), values, others)
    for part in parts:
        if part.sheet.new is not None:
            part.new = space.add_tuples(part.sheet.new, part.codes())
        if part.sheet.old is not None:
            part.old = space.add_tuples(part.sheet.old, part.codes())
    return space


def _part(sheet: Sheet, what: tuple[str, ...]) -> _Part:
    """Which layout each row has: by its relation, and by which of its columns are not known."""
    relations, which = sheet.relations, sheet.which
    if not relations:
        return _Part(sheet, [], [], which, which)
    if sheet.new is None or not (unknown := sheet.new.kinds == UNCHANGED).any():
        layouts = _layouts.find(Kind.of(sheet, (), what), relations)
    else:
        patterns, pattern = _patterns(unknown)
        present, place = np.unique(pattern * len(relations) + which, return_inverse=True)
        which = place.astype(np.int32)
        layouts = []
        for number, columns in enumerate(patterns):
            mine = present[present // len(relations) == number] % len(relations)
            found = [relations[one] for one in mine.tolist()]
            layouts += _layouts.find(Kind.of(sheet, columns, what), found)
    bodies = {body: place for place, body in enumerate(dict.fromkeys([one.body for one in layouts]))}
    head = body = np.zeros(1, np.int32)
    if len(layouts) > 1:
        head = which
    if len(bodies) > 1:
        body = np.array([bodies[layout.body] for layout in layouts], np.int32)[which]
    return _Part(sheet, [layout.head for layout in layouts], list(bodies), head, body)


def _patterns(unknown: Mask) -> tuple[list[tuple[int, ...]], npt.NDArray[np.intp]]:
    """The sets of columns that are not known, in practice one or two, and which of them a row has."""
    columns = np.flatnonzero(unknown.any(axis=1))
    packed = np.packbits(unknown[columns], axis=0)
    keys = packed[0] if len(packed) == 1 else np.ascontiguousarray(packed.T).view(f"V{len(packed)}").ravel()
    _, sample, which = np.unique(keys, return_index=True, return_inverse=True)
    return [tuple(columns[unknown[columns, row]].tolist()) for row in sample.tolist()], which


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
    seqs = _Sequences(np.concatenate([part.sheet.seq for part, _ in parts]))
    digits = space.add_run(seqs.digits.relative, space.add(seqs.digits.bytes))
    at = np.concatenate([start for _, start in parts])
    of = np.concatenate([part.sheet.transaction for part, _ in parts])
    index[at] = np.concatenate([np.broadcast_to(part.head_texts(), len(part.sheet)) for part, _ in parts])
    index[at + 1] = stamps[0] + 2 * of
    index[at + 2] = digits + seqs.places
    index[at + 3] = stamps[1] + 2 * of


def _values(part: _Part, out: I32) -> None:
    """The texts and values behind a line's head, as elements; one row of `out` each."""
    sheet, body = part.sheet, part.bodies[0]
    rows, count = len(sheet), len(body.column)
    first = part.new + (part.old - part.new) * body.source + 2 * rows * body.column
    # Computed value by value, where rows lie side by side, and turned only when stored.
    out[:, 1::2] = (first[:, None] + np.arange(0, 2 * rows, 2, dtype=np.int32)).T
    text = body.forms[:, None] + part.body_texts()
    null = _null(sheet, body)
    if null is not None:
        form = np.zeros((count + 1, rows), np.uint8)
        form[:-1] = null
        form[1:] += null << 1
        text = text + form
    out[:, 0::2] = text.T


def _null(sheet: Sheet, body: Body) -> npt.NDArray[np.uint8] | None:
    """Per value and row: 1 if it is NULL. None: no value of the sheet is."""
    out: npt.NDArray[np.uint8] | None = None
    for source, tuples in enumerate((sheet.new, sheet.old)):
        if tuples is None or not (null := tuples.kinds == NULL).any():
            continue
        mine = null[body.column]
        if sheet.new is not None and sheet.old is not None:
            mine &= (body.source == source)[:, None]
        out = mine.view(np.uint8) if out is None else out | mine.view(np.uint8)
    return out


def _messages(space: Space, window: Window, sheet: Sheet, what: tuple[str, ...]) -> I32:
    """Messages one by one: each is a text of its own, and they are few."""
    if what == LINE:
        lsn = lsn_stamps(window.lsn(sheet), "")
        time = times(window.time(sheet))
        texts = [
            _message(
                message,
                lsn.text[row, int(lsn.start[row]) :].tobytes().decode(),
                int(sheet.seq[row]),
                int(window.xid(sheet)[row]),
                time[row].tobytes().decode(),
            )
            for row, message in enumerate(sheet.messages)
        ]
    else:
        texts = [_content(message)[0] if what == ("after",) else "" for message in sheet.messages]
    found = Gathered(pa.array([text.encode() for text in texts], pa.binary()))
    place = space.add(found.bytes)
    first = space.add_pairs(place + found.relative[:-1], place + found.relative[1:])
    return np.arange(first, first + 2 * len(sheet), 2, dtype=np.int32)


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
