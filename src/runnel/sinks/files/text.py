"""Windows to text: which bytes go to which folder, and the task half of sinks that write text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ...changes.block import Window
from ...marshal.json import Lines, lines, lines_by_table
from ...postgres.lsn import Lsn
from ...postgres.patterns import label
from ..api import Reject
from ..trouble import told
from .names import MESSAGES, folder_of
from .stage import Portion, TextStage, to_payload


class Encoder(Protocol):
    def encode(self, window: Window, rejects: list[Reject]) -> Iterator[Portion]:
        """The window's changes in commit order per folder; what can never be taken goes to `rejects`."""
        ...


class JsonLines:
    def __init__(self, by_table: bool, longest: int | None) -> None:
        self._by_table = by_table
        self._longest = longest

    def encode(self, window: Window, rejects: list[Reject]) -> Iterator[Portion]:
        for folder, some in self._lines(window):
            data, count = fitting(some, self._longest, rejects)
            if count:
                yield Portion(folder, data, count)

    def again(self, letters: Iterable[Reject], rejects: list[Reject]) -> Iterator[Portion]:
        """The same of letters, which hold the line itself."""
        for letter in letters:
            line = letter.change.encode() + b"\n"
            some = Lines(memoryview(line), np.array([0, len(line)]))
            data, count = fitting(some, self._longest, rejects)
            if count:
                change = json.loads(line) if self._by_table else {}
                table = folder_of(change["schema"], change["table"]) if "table" in change else MESSAGES
                yield Portion(table if self._by_table else "", data, count)

    def _lines(self, window: Window) -> Iterable[tuple[str, Lines]]:
        if not self._by_table:
            return [("", lines(window))]
        tables = {relation.label: relation for sheet in window.sheets for relation in sheet.relations}
        return [
            (folder_of(tables[name].schema, tables[name].name) if name else MESSAGES, some)
            for name, some in lines_by_table(window).items()
        ]


class TextWriter:
    def __init__(self, where: str, encoder: Encoder, stage: TextStage, durable_from: int) -> None:
        self._where = where
        self._encoder = encoder
        self._stage = stage
        self._durable_from = durable_from

    def write(self, window: Window) -> Sequence[Reject]:
        rejects: list[Reject] = []
        self._add(self._encoder.encode(window, rejects))
        return rejects

    def write_letters(self, letters: Sequence[Reject]) -> Sequence[Reject]:
        assert isinstance(self._encoder, JsonLines)  # noqa: S101 - `Capabilities.default_json`
        rejects: list[Reject] = []
        self._add(self._encoder.again(letters, rejects))
        return rejects

    def finish(self) -> Mapping[str, Any]:
        with told(self._where):
            return to_payload(self._stage.finish(self._durable_from))

    def abort(self) -> None:
        try:
            self._stage.abort()
        except OSError:
            return  # the next owner sweeps the stage

    def _add(self, portions: Iterable[Portion]) -> None:
        with told(self._where):
            for portion in portions:
                self._stage.add(portion)


def fitting(some: Lines, longest: int | None, rejects: list[Reject]) -> tuple[bytes | memoryview, int]:
    """The lines that are short enough, and their number; the others become rejects."""
    data = memoryview(some.data).cast("B")
    count = len(some.offsets) - 1
    if longest is None or not count:
        return data, count
    long = np.flatnonzero(np.diff(some.offsets) > longest)
    if not len(long):
        return data, count
    kept = []
    at = 0
    for index in long.tolist():  # rare: a loop over rejects, not over rows
        start, end = int(some.offsets[index]), int(some.offsets[index + 1])
        kept.append(data[at:start])
        at = end
        rejects.append(reject(bytes(data[start:end]), f"{end - start} bytes, more than {longest} allowed"))
    kept.append(data[at:])
    return b"".join(kept), count - len(long)


def line_at(some: Lines, index: int) -> bytes:
    return bytes(some.data[int(some.offsets[index]) : int(some.offsets[index + 1])])


_TEXT = rb'"(?:[^"\\]|\\.)*"'
_HEAD = re.compile(
    rb'\{"op":"\w+"(?:,"schema":(' + _TEXT + rb'),"table":(' + _TEXT + rb'))?'
    rb',"lsn":"([0-9A-F/]+)"(?:,"seq":(\d+))?(?:,"xid":\d+)?,"time":"[^"]*"(,"key":)?'
)  # fmt: skip


def reject(line: bytes, reason: str) -> Reject:
    """What a default JSON line tells of a change that cannot be taken."""
    head = _HEAD.match(line)
    if head is None:
        raise ValueError(f"not a change in the default JSON: {line[:80]!r}")
    text = line.decode().rstrip("\n")
    key = None
    if head[5]:  # the key's own text: numbers keep their digits
        start = len(line[: head.end()].decode())
        key = text[start : json.JSONDecoder().raw_decode(text, start)[1]]
    return Reject(
        lsn=Lsn.parse(head[3].decode()),
        seq=int(head[4] or 0),
        table=label(json.loads(head[1]), json.loads(head[2])) if head[1] else "",
        key=key,
        change=text,
        reason=reason,
    )
