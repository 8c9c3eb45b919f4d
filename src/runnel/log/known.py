"""Single chunks of a log: how they are named, what their footers say, whose they are.

Comes in: a chunk's start. Goes out: references to its parts, remembered, since a chunk never changes.
What must hold: a chunk is what its name says and belongs to the subscription of its log, or it is
refused by its full name.
"""

from __future__ import annotations

import json

from ..errors import Refused
from .api import ChunkRef, Lineage
from .chunk import damaged, lineage_id, read_footer
from .store import Store

VERSION = 1
MARK = "_log.json"
_KEPT = 20_000


def chunk_name(start: int, part: int, epoch: int) -> str:
    return f"{start:016X}.{part:05d}.chunk" if part == 0 else f"{start:016X}.{part:05d}.e{epoch}.chunk"


class KnownChunks:
    def __init__(self, store: Store) -> None:
        self.id: int | None = None
        """Of the subscription the log belongs to, once known."""
        self._store = store
        self._refs: dict[int, tuple[ChunkRef, ...]] = {}

    def get(self, start: int) -> tuple[ChunkRef, ...] | None:
        """Only if it was seen before."""
        return self._refs.get(start)

    def drop(self, start: int) -> None:
        self._refs.pop(start, None)

    def clear(self) -> None:
        self._refs.clear()
        self.id = None

    def load(self, start: int) -> tuple[ChunkRef, ...] | None:
        """The chunk that begins at `start`, all parts; None if there is none."""
        known = self._refs.get(start)
        if known is not None:
            return known
        try:
            first, epoch = self._ref(start, 0, 0)
        except FileNotFoundError:
            return None
        refs = [first]
        for part in range(1, first.parts):
            try:
                ref, _ = self._ref(start, part, epoch)
            except FileNotFoundError as error:
                if self._trimmed(start):
                    return None
                raise Refused(
                    f"chunk {self._store.path}/{chunk_name(start, part, epoch)} is missing: "
                    f"part {part} of {first.parts} of one transaction",
                    hint="restore that file from a copy; or stop Runnel, move the chunk's other parts and "
                    "every later chunk out of the log and start again: what no pipeline has confirmed yet "
                    "still comes from the slot",
                ) from error
            refs.append(ref)
        self.keep(start, tuple(refs))
        return tuple(refs)

    def _trimmed(self, start: int) -> bool:
        """Trimming deletes part 0 first: whoever misses another part looks at it once more."""
        try:
            self._store.source(chunk_name(start, 0, 0)).close()
        except FileNotFoundError:
            return True
        return False

    def _ref(self, start: int, part: int, epoch: int) -> tuple[ChunkRef, int]:
        name = chunk_name(start, part, epoch)
        source = self._store.source(name)
        try:
            footer = read_footer(source)
            if (footer.start, footer.part) != (start, part) or (part and footer.epoch != epoch):
                raise damaged(source, f"holds part {footer.part} of {footer.start} of epoch {footer.epoch}")
            if self.id is None:
                mark = self.mark()
                self.id = lineage_id(mark) if mark is not None else footer.lineage_id
            if footer.lineage_id != self.id:
                raise damaged(source, "belongs to another subscription's log")
        finally:
            source.close()
        return footer.ref(name), footer.epoch

    def keep(self, start: int, refs: tuple[ChunkRef, ...]) -> None:
        if len(self._refs) >= _KEPT:
            del self._refs[next(iter(self._refs))]
        self._refs[start] = refs

    def mark(self) -> Lineage | None:
        try:
            text = self._store.read(MARK)
        except FileNotFoundError:
            return None
        try:
            value = json.loads(text)
            version, lineage = int(value["version"]), Lineage.from_json(value["lineage"])
        except (ValueError, KeyError, TypeError) as error:
            raise Refused(
                f"{self._store.path}/{MARK} is not what Runnel wrote: {error}",
                hint="delete it if the directory is a log of Runnel's: it is written anew",
            ) from error
        if version > VERSION:
            raise Refused(
                f"the log {self._store.path} has version {version}; this Runnel reads up to {VERSION}",
                hint="use the Runnel version that wrote the log, or a later one",
            )
        return lineage
