"""The change log as files: which names exist, in which order they appear, which chain they form.

    00000000016B3748.00000.chunk           the chunk that begins at 0/16B3748, or its part 0
    00000000016B3748.00001.e7.chunk        further parts of it, written by the capture of epoch 7
    .chunk-*.tmp                           being written; the next owner sweeps what a dead one left
    _log.json                              version of the log and the subscription it belongs to
    _stage/                                scratch of sinks; not the log's

A chunk is visible when its part 0 has its name, and that name is given once (see the stores). Its end
is where the next one's name must begin, so a reader that has seen the end of the log finds out about
more with a single look-up, and a hole in the chain cannot be stepped over.
"""

from __future__ import annotations

import json
import re
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

from ..errors import Refused
from ..failpoints import failpoint
from ..postgres.lsn import Lsn
from .api import ChunkHeader, ChunkRef, Filled, Lineage, LogSettings, Usage
from .chunk import FileChunkReader, FileChunkWriter, damaged, lineage_id
from .known import MARK, VERSION, KnownChunks, chunk_name
from .spool import TEMPORARY
from .store import Store

_NAME = re.compile(r"([0-9A-F]{16})\.(\d{5})(?:\.e(\d+))?\.chunk")
_RECHECK = (1.0, 60.0)


class DirectoryLog:
    """`ChangeLog` over a `Store`. One object per process and thread; any number of readers beside one
    appender. The one that appended or swept is the owner: it keeps count instead of listing again."""

    def __init__(
        self, store: Store, settings: LogSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.path = store.path
        self._store = store
        self._settings = settings
        self._clock = clock
        self._owner = False
        self._known = KnownChunks(store)
        self._starts: list[int] = []  # of the last listing; the owner keeps it exact
        self._files: dict[int, dict[str, int]] = {}  # start: its files and their sizes, visible or not
        self._bytes = 0
        self._stamp: object = None
        self._tail: int | None = None  # end of the last chunk known, once the chain was walked to it
        self._next_look = 0.0
        self._recheck_after = _RECHECK[0]
        self._recheck_at = 0.0

    # Writing

    def writer(self) -> FileChunkWriter:
        return FileChunkWriter(self._store.spool(), self._settings.piece_bytes)

    def append(self, parts: Sequence[Filled]) -> None:
        first = parts[0].header
        self._accepts([part.header for part in parts])
        named: list[tuple[FileChunkWriter, str, int, ChunkHeader]] = []
        for filled in parts:
            writer = filled.writer
            if not isinstance(writer, FileChunkWriter):
                raise TypeError("append takes the writers this log gave out")
            header, size = writer.finish(filled.header)
            if not writer.spool.closed:
                self._store.settle(writer.spool)
            named.append((writer, chunk_name(first.start, header.part, first.epoch), size, header))
        for writer, name, _, _ in named[1:]:
            if not writer.spool.closed:
                self._store.place(writer.spool, name)
        if len(named) > 1:
            self._store.sync()
        failpoint("log.chunk.written")
        try:
            self._store.reveal(named[0][0].spool, named[0][1])
        except FileExistsError as error:
            named[0][0].discard()  # further parts, if any, are the next owner's to sweep
            raise self._taken(first.start) from error
        self._store.sync()
        failpoint("log.chunk.visible")
        self._appended(named)

    def advance(self, header: ChunkHeader) -> None:
        writer = self.writer()
        try:
            self.append([Filled(writer, header)])
        finally:
            writer.discard()

    def _accepts(self, headers: Sequence[ChunkHeader]) -> None:
        first = headers[0]
        for number, header in enumerate(headers):
            same = (first.start, first.end, first.epoch, first.lineage)
            if (header.start, header.end, header.epoch, header.lineage) != same:
                raise ValueError("the parts of a chunk share start, end, epoch and lineage")
            if (header.part, header.parts) != (number, len(headers)):
                raise ValueError(
                    f"part {header.part} of {header.parts} at place {number} of {len(headers)}"
                )
        if first.end <= first.start:
            raise ValueError(f"a chunk covers (start, end], not ({first.start}, {first.end}]")
        if not self._owner or not self._starts:
            self._list(sizes=True)
        end = self._end()
        self._belongs(first.lineage, empty=end is None)
        if end is not None and first.start != end:
            if first.start < end:
                raise self._taken(first.start)
            raise Refused(
                f"the log {self.path} ends at {end}; a chunk from {first.start} on would leave a gap",
                hint="restart capture: it begins where the log ends",
            )
        # Parts are placed by replacing, so that a failed append can be repeated; never over visible ones.
        if len(headers) > 1 and self._known.load(first.start) is not None:
            raise self._taken(first.start)

    def _taken(self, start: Lsn) -> Refused:
        return Refused(
            f"the log {self.path} already holds a chunk at {start}: another capture writes to it",
            hint="let one capture own a log; `runnel status` shows which one runs",
        )

    def _appended(self, named: Sequence[tuple[FileChunkWriter, str, int, ChunkHeader]]) -> None:
        self._owner = True
        header = named[0][3]
        self._starts.append(header.start)
        self._files[header.start] = {name: size for _, name, size, _ in named}
        self._bytes += sum(size for _, _, size, _ in named)
        self._known.keep(
            header.start,
            tuple(
                ChunkRef(
                    name, h.start, h.end, h.part, h.parts, w.size, h.changes, h.last_time, h.schema_change
                )
                for w, name, _, h in named
            ),
        )
        self._tail = header.end

    def _belongs(self, lineage: Lineage, *, empty: bool) -> None:
        """Bind a new log to the subscription; refuse another's."""
        if self._known.id == lineage_id(lineage):
            return
        mark = self._known.mark()
        if mark is not None and mark.slot != lineage.slot and not empty:
            raise Refused(
                f"the log {self.path} belongs to the slot {mark.slot}, not to {lineage.slot}",
                hint="set log.path to a directory of its own, or delete the old log",
            )
        if mark is None or mark.slot != lineage.slot:
            self._store.prepare()
            spool = self._store.spool()
            spool.write_at(
                0, json.dumps({"version": VERSION, "lineage": lineage.to_json()}, indent=2).encode()
            )
            self._store.settle(spool)
            self._store.place(spool, MARK)
        self._known.id = lineage_id(lineage)

    # Reading

    def chunks(self, after: Lsn) -> Iterator[ChunkRef]:
        found = self._covering(after)
        while found is not None:
            yield from found
            end = found[0].end
            following = self._known.load(end)
            if following is None:
                if self._starts and self._starts[-1] > found[0].start:
                    following = self._known.load(end) or self._broken(end)
                else:
                    self._tail = int(end)
            found = following

    def _covering(self, after: Lsn) -> tuple[ChunkRef, ...] | None:
        if self._tail is not None and after >= self._tail:
            found = self._beyond(after)
            if found is not None or self._tail is not None:
                return found
        known = self._known.get(after)
        if known is not None:
            return known
        self._list()
        if not self._starts:
            return None
        place = bisect_right(self._starts, after) - 1
        if place < 0:
            raise self._trimmed(after)
        found = self._known.load(self._starts[place])
        while found is not None and found[0].end <= after:
            end = found[0].end
            found = self._known.load(end)
            if found is None:
                if self._starts[-1] > self._starts[place]:
                    return self._broken(end)
                self._tail = int(end)
        return found

    def _trimmed(self, after: Lsn) -> Refused:
        return Refused(
            f"the log {self.path} begins at {Lsn(self._starts[0])}: changes from {after} on are no longer "
            "in it",
            hint="go back no further than the log does (log.retain keeps more), or set the pipeline up "
            "anew: `runnel remove` it and run again",
        )

    def _beyond(self, after: Lsn) -> tuple[ChunkRef, ...] | None:
        """At or past the known end: one look-up. Now and then, with doubling pauses, a look at the
        whole: a log that was lost and rebuilt has other borders, and would be waited for in vain."""
        now = self._clock()
        if now < self._next_look:
            return None
        tail = self._tail
        while tail is not None and after >= tail:
            found = self._known.load(tail)
            if found is None:
                self._next_look = now + self._store.poll_seconds
                if now >= self._recheck_at and not self._same(tail):
                    self._forget()
                return None
            self._recheck_after = _RECHECK[0]
            self._recheck_at = now + self._recheck_after
            self._tail = tail = int(found[0].end)
            if tail > after:
                return found
        return None

    def _same(self, tail: int) -> bool:
        self._recheck_after = min(2 * self._recheck_after, _RECHECK[1])
        self._recheck_at = self._clock() + self._recheck_after
        if self._owner or not self._starts:
            return True
        last = self._starts[-1]
        stamp = self._store.stamp()
        if stamp is not None and stamp == self._stamp:
            return True
        self._list()
        if not self._starts or self._starts[-1] < last:
            return False
        final = self._known.load(self._starts[-1])
        return final is None or final[0].end == tail or self._known.load(tail) is not None

    def _forget(self) -> None:
        self._known.clear()
        self._tail = None

    def _broken(self, end: int) -> tuple[ChunkRef, ...]:
        self._list()  # what was read might be older than a trim or an append of just now
        following = self._known.load(end)
        if following is not None:
            return following
        place = bisect_right(self._starts, end)
        if place == 0 and self._starts:
            raise self._trimmed(Lsn(end))
        other = f"the next chunk begins at {Lsn(self._starts[place])}" if place < len(self._starts) else ""
        raise Refused(
            f"the log {self.path} is broken: {chunk_name(end, 0, 0)} is missing"
            + (f", {other}" if other else ", though chunks overlap its place"),
            hint="restore that file from a copy; or stop Runnel, move every later chunk out of the log and "
            "start again: what no pipeline has confirmed yet still comes from the slot",
        )

    def open(self, name: str) -> FileChunkReader:
        if not _NAME.fullmatch(name):
            raise ValueError(f"not the name of a chunk: {name!r}")
        try:
            source = self._store.source(name)
        except FileNotFoundError as error:
            raise Refused(
                f"chunk {self.path}/{name} is gone: it was trimmed or deleted while it was needed",
                hint="restore it from a copy, or set the pipeline up anew: `runnel remove` and run again",
            ) from error
        try:
            reader = FileChunkReader(source)
            found = reader.header
            if name != chunk_name(found.start, found.part, found.epoch):
                raise damaged(source, f"holds part {found.part} of the chunk at {found.start}")
        except BaseException:
            source.close()
            raise
        return reader

    def lineage(self) -> Lineage | None:
        self._list()
        if not self._starts:
            return None
        with self.open(chunk_name(self._starts[-1], 0, 0)) as reader:
            return reader.header.lineage

    # Keeping house

    def _list(self, *, sizes: bool = False) -> list[str]:
        """Look at all names again; returns those that are not the log's. With `sizes`, files not seen
        before are measured."""
        self._stamp = self._store.stamp()
        starts: list[int] = []
        files: dict[int, dict[str, int]] = {}
        strangers: list[str] = []
        for name in self._store.names():
            match = _NAME.fullmatch(name)
            if match is None or (match[2] == "00000") != (match[3] is None):
                if not name.startswith(("_", ".")):
                    strangers.append(name)
                continue
            start = int(match[1], 16)
            if match[3] is None:
                starts.append(start)
            if sizes:
                size = self._files.get(start, {}).get(name)
                try:
                    files.setdefault(start, {})[name] = self._store.size(name) if size is None else size
                except FileNotFoundError:
                    continue  # trimmed by its owner meanwhile
        starts.sort()
        self._starts = starts
        if sizes:
            self._files = files
            self._bytes = sum(sum(some.values()) for some in files.values())
        return sorted(strangers)

    def _end(self) -> Lsn | None:
        if not self._starts:
            return None
        last = self._known.load(self._starts[-1])
        return last[0].end if last is not None else None

    def usage(self) -> Usage:
        if not self._owner:
            stamp = self._store.stamp()
            if stamp is None or stamp != self._stamp or not self._files:
                self._list(sizes=True)
        first = Lsn(self._starts[0]) if self._starts else None
        return Usage(self._bytes, len(self._starts), first, self._end())

    def trim(self, upto: Lsn, *, keep_since: int = 0) -> int:
        if not self._owner:
            self._list(sizes=True)
        freed = 0
        done = 0
        # Oldest first, so that what remains is a chain whenever this is interrupted. A chunk's end is
        # the next one's start: without a time to respect, nothing is read.
        for start, end in zip(self._starts, self._starts[1:], strict=False):
            if end > upto or (keep_since and self._younger(start, keep_since)):
                break
            for name in sorted(self._files.get(start, ())):
                self._store.delete(name)  # part 0 is first: without it the rest is nothing
            freed += sum(self._files.pop(start, {}).values())
            self._known.drop(start)
            done += 1
        del self._starts[:done]
        self._bytes -= freed
        return freed

    def _younger(self, start: int, keep_since: int) -> bool:
        refs = self._known.load(start)
        return refs is not None and max(ref.last_time for ref in refs) >= keep_since

    def sweep(self) -> list[str]:
        strangers = self._list(sizes=True)
        seen = set(self._starts)
        for start, files in list(self._files.items()):
            # Parts without their part 0, or of another epoch than it: an append that never became visible.
            alone = len(files) == 1 and start in seen
            visible = set(files) if alone else {r.name for r in (self._known.load(start) or ())}
            for name in set(files) - visible:
                self._store.delete(name)
                self._bytes -= files.pop(name)
            if not files:
                del self._files[start]
        for name in self._store.names():
            if name.startswith(TEMPORARY):
                self._store.delete(name)
        if self._starts:
            self._store.sync()  # a power cut may have come between a chunk's name and its flush
        self._owner = True
        return strangers

    def destroy(self) -> None:
        self._list(sizes=True)
        for files in self._files.values():
            for name in sorted(files):
                self._store.delete(name)
        for name in self._store.names():
            if name.startswith(TEMPORARY) or name == MARK:
                self._store.delete(name)
        self._store.destroy()
        self._forget()
        self._starts, self._files, self._bytes, self._owner = [], {}, 0, False
