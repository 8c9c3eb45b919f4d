"""Cuts what the slot sends into chunks: a state machine over bursts of frames.

What comes in: `Frames` of one burst after another, of one replication connection at a time. What goes
out: chunks, appended to the log, each ending where a transaction ends.

- Many transactions share a chunk; it is cut at a transaction's end when it has `chunk_bytes`, or when
  the caller finds it `due`.
- The frames of a transaction that has not ended are held back (`tail`). If they outgrow `chunk_bytes`,
  the transaction gets chunks for itself, written part by part and appended together at its Commit.
- Streamed transactions go to a spool and at Stream Commit into parts in the same way.
- What the log already holds (commit LSN below its end) is skipped.
- Empty transactions are dropped; the log's end still moves past them.

What must hold: `end` is the log's end at all times; a chunk covers (end before, end]. No Python object
and no loop per row or per transaction: what is per burst, per chunk, per stream block or per Relation
message may cost something.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..changes.relation import Relation
from ..errors import Transient
from ..failpoints import failpoint
from ..log.api import FRAME_HEAD, ChangeLog, ChunkHeader, Lineage, OpenTransaction
from ..postgres.lsn import Lsn
from . import protocol
from .chunk import Describe, OpenChunk, Segment, Versions, segment
from .protocol import I64, Commit, Frames, StreamCommit
from .spool import WINDOW, Spool, Spools


class Cutter:
    def __init__(
        self,
        log: ChangeLog,
        spools: Spools,
        describe: Describe,
        *,
        lineage: Lineage,
        epoch: int,
        end: Lsn,
        chunk_bytes: int,
        known: Iterable[Relation] = (),
    ) -> None:
        """`known`: the last versions the log holds, so that a Relation message after a restart is
        a schema change only if it is one."""
        self.end = end
        self.changes = 0
        """Appended so far."""
        self._log = log
        self._spools = spools
        self._describe = describe
        self._lineage = lineage
        self._epoch = epoch
        self._limit = chunk_bytes
        self._known = Versions(known)
        self._open: OpenChunk | None = None
        self._open_since = 0.0
        self._passed = end
        self._tail: list[Segment] = []
        self._tail_bytes = 0
        self._parts: list[OpenChunk] = []
        self._large_xid = 0
        self._stream: Spool | None = None
        self._skipping = True
        self._torn = False
        """A burst was taken half: what stands in the open chunk may be half a transaction."""

    # what the service asks

    @property
    def idle(self) -> bool:
        """Everything received is in the log (transactions in a spool have not ended)."""
        return self._open is None and not self._tail and not self._parts and self._stream is None

    @property
    def pending(self) -> bool:
        """Something is complete and not yet in the log."""
        return self._open is not None

    @property
    def passed(self) -> Lsn:
        """End of the last transaction received: up to here all is in the log or in the open chunk."""
        return self._passed

    def due(self, now: float, linger: float) -> bool:
        """Whether the open chunk should be cut now that the socket is empty. A busy stream gets a few
        lingers more: larger chunks cost everybody less."""
        if self._open is None:
            return False
        age = now - self._open_since
        return age >= linger and (self._open.writer.size < self._limit // 8 or age >= 4 * linger)

    def cut(self) -> None:
        """What is complete becomes a chunk. Nothing, once a burst failed half way: it comes again."""
        if self._open is not None and not self._torn:
            self._append([self._open], self._passed)
            self._open = None

    def advance(self, lsn: Lsn) -> None:
        """Nothing happened up to `lsn`: say so in the log. Only while `idle`."""
        lsn = max(lsn, self._passed)
        if lsn > self.end and not self._torn:
            header = ChunkHeader(lineage=self._lineage, epoch=self._epoch, start=self.end, end=lsn)
            self._log.advance(header)
            self.end = self._passed = lsn

    def disconnected(self) -> None:
        """The connection is gone: forget what is not in the log. The server sends it again."""
        for chunk in (*self._parts, *((self._open,) if self._open else ())):
            chunk.writer.discard()
        self._open = None
        self._passed = self.end
        self._parts.clear()
        self._drop_tail()
        self._known.revert()
        self._stream = None
        self._spools.clear()
        self._skipping = True
        self._torn = False

    # the stream

    def feed(self, frames: Frames, now: float) -> None:
        """`now`: any clock that rises, the one `due` is asked with. If this raises, nothing reaches the
        log any more until `disconnected`."""
        at = 0
        try:
            for number in np.flatnonzero(protocol.IS_STREAM_CONTROL[frames.kind]).tolist():
                # per stream block, not per row
                self._run(frames, at, number, now)
                self._control(frames, number)
                at = number + 1
            self._run(frames, at, len(frames), now)
        except BaseException:
            self._torn = True
            raise

    def _run(self, frames: Frames, first: int, last: int, now: float) -> None:
        if first >= last:
            return
        part = _part(frames, first, last)
        if self._stream is not None:
            self._stream.write(part)
        else:
            self._plain(part, now)

    def _control(self, frames: Frames, number: int) -> None:
        kind, message = int(frames.kind[number]), frames.message(number)
        if kind == protocol.STREAM_START:
            self._stream = self._spools.start(protocol.parse_stream_start(message).xid)
        elif kind == protocol.STREAM_STOP:
            if self._stream is not None:
                self._stream.close()
            self._stream = None
        elif kind == protocol.STREAM_ABORT:
            abort = protocol.parse_stream_abort(message)
            self._spools.abort(abort.xid, abort.subxid)
        else:
            self._stream_commit(protocol.parse_stream_commit(message))

    # plain transactions

    def _plain(self, frames: Frames, now: float) -> None:
        frames, empty_end = _without_empty(frames)
        ends = _ends(frames)
        at = 0
        if len(ends) and self._skipping:
            at, ends = self._skip(frames, ends)
        if len(ends) and self._parts:  # the large transaction in progress ends here
            last = int(ends[0])
            self._into_parts(segment(_part(frames, at, last + 1), self._describe))
            self._commit_large(protocol.parse_commit(frames.message(last)))
            at, ends = last + 1, ends[1:]
        while len(ends):
            held = self._tail_bytes + (self._open.writer.size if self._open else 0)
            reached = frames.start[ends + 1] - frames.start[at] + held
            full = int(np.searchsorted(reached, self._limit))
            chosen = ends[: full + 1]
            altering = self._altering(frames, at, chosen)
            if altering is not None:
                # A transaction that alters a table has a chunk for itself, so that it can be a batch.
                full = max(altering, 1) - 1
                chosen = ends[: full + 1]
                if altering == 0:
                    self.cut()
            self._complete(frames, at, chosen, now)
            at, ends = int(chosen[-1]) + 1, ends[len(chosen) :]
            if len(chosen) == full + 1:
                self.cut()
        if at < len(frames):
            self._hold(segment(_part(frames, at, len(frames)), self._describe))
        self._passed = max(self._passed, empty_end)

    def _altering(self, frames: Frames, first: int, ends: I64) -> int | None:
        """Which of these transactions is the first to bring another version of a table."""
        held = [(-1, relation) for part in self._tail for _, relation in part.relations]
        last = int(ends[-1]) + 1
        if (frames.kind[first:last] == protocol.RELATION).any():
            held += segment(_part(frames, first, last), self._describe).relations
        found = self._known.first_alteration(held) if held else None
        return None if found is None else int(np.searchsorted(ends, first + max(found, 0)))

    def _complete(self, frames: Frames, first: int, ends: I64, now: float) -> None:
        """Transactions that end at these frames, the first of which may have begun in the tail."""
        if self._open is None:
            self._open = OpenChunk(self._log.writer(), self._known)
            self._open_since = now
        for held in self._tail:
            self._open.add(held)
        self._drop_tail()
        last = int(ends[-1])
        self._open.add(segment(_part(frames, first, last + 1), self._describe))
        commits = ends[frames.kind[ends] == protocol.COMMIT]
        if len(commits):
            begun, ended = (protocol.parse_commit(frames.message(int(i))) for i in commits[[0, -1]])
            self._open.count(len(commits), begun.time, ended.time)
        if frames.kind[last] == protocol.COMMIT:
            self._passed = ended.end
        else:
            # Outside any transaction it has no commit's time, and `log.retain` would not keep it.
            sent = frames.sent(last)
            self._open.count(0, sent, sent)
            self._passed = Lsn(protocol.message_lsn(frames.message(last)) + 1)

    def _hold(self, rest: Segment) -> None:
        if self._parts:
            self._into_parts(rest)
            return
        self._tail.append(rest)
        self._tail_bytes += len(rest.frames.data)
        if self._open is not None and self._open.writer.size + self._tail_bytes >= self._limit:
            self.cut()
        if self._tail_bytes >= self._limit:  # too large to share a chunk
            for held in self._tail:
                self._into_parts(held)
            self._large_xid = protocol.parse_begin(self._tail[0].frames.message(0)).xid
            self._drop_tail()

    def _drop_tail(self) -> None:
        self._tail.clear()
        self._tail_bytes = 0

    def _skip(self, frames: Frames, ends: I64) -> tuple[int, I64]:
        """After a reconnection: pass over what the log already holds, but not over the relations in it:
        the server will not send them again."""
        old = int(np.searchsorted(frames.u64(ends, protocol.END_LSN), np.uint64(self.end)))
        self._skipping = old == len(ends)
        if not old:
            return 0, ends
        last = int(ends[old - 1])
        for chunk in self._parts:
            chunk.writer.discard()
        self._parts.clear()
        for held in (*self._tail, segment(_part(frames, 0, last + 1), self._describe)):
            for _, relation in held.relations:
                self._known.learn(relation)
        self._drop_tail()
        return last + 1, ends[old:]

    # transactions that have their chunks for themselves

    def _into_parts(self, piece: Segment) -> None:
        # A part is an open file until the end: those of a huge transaction grow, so that they stay few.
        limit = self._limit << min(len(self._parts) // 128, 10)
        if not self._parts or self._parts[-1].writer.size >= limit:
            first_seq = 0
            if self._parts:
                self._parts[-1].finish()
                self._parts[-1].writer.rest()
                first_seq = self._parts[-1].first_seq + self._parts[-1].changes
            self._parts.append(OpenChunk(self._log.writer(), self._known, first_seq))
        self._parts[-1].add(piece)

    def _commit_large(self, commit: Commit) -> None:
        whole = OpenTransaction(self._large_xid, commit.lsn, commit.end, commit.time)
        self._commit_parts(whole, streamed=False)

    def _stream_commit(self, commit: StreamCommit) -> None:
        spool = self._spools.get(commit.xid)
        if spool is None:
            raise Transient(
                f"the server committed streamed transaction {commit.xid}, of which it sent nothing",
                hint="capture connects again; report it if it comes back",
            )
        self.cut()
        fresh = commit.lsn >= self.end
        for frames in spool.windows(min(WINDOW, self._limit)):
            piece = segment(frames, self._describe, streamed=True)
            if fresh:
                self._into_parts(piece)
            else:
                for _, relation in piece.relations:
                    self._known.learn(relation)
        if self._parts:
            whole = OpenTransaction(commit.xid, commit.lsn, commit.end, commit.time)
            self._commit_parts(whole, streamed=True)
        self._passed = max(self._passed, commit.end)
        self._spools.drop(commit.xid)

    def _commit_parts(self, whole: OpenTransaction, *, streamed: bool) -> None:
        self._parts[0].count(1, whole.time, whole.time)
        for chunk in self._parts[1:]:
            chunk.count(0, whole.time, whole.time)
        self._append(self._parts, whole.end, whole, streamed=streamed)
        self._parts = []

    def _append(
        self,
        chunks: list[OpenChunk],
        end: Lsn,
        transaction: OpenTransaction | None = None,
        *,
        streamed: bool = False,
    ) -> None:
        chunks[-1].finish()
        filled = [
            chunk.filled(
                self._lineage,
                self._epoch,
                self.end,
                end,
                part=number,
                parts=len(chunks),
                transaction=transaction,
                streamed=streamed,
            )
            for number, chunk in enumerate(chunks)
        ]
        failpoint("capture.chunk.written")
        self._log.append(filled)
        failpoint("capture.chunk.visible")
        self._known.settle()
        self.end = self._passed = end
        self.changes += sum(chunk.changes for chunk in chunks)


def _part(frames: Frames, first: int, last: int) -> Frames:
    return frames if last - first == len(frames) else frames.slice(first, last)


def _ends(frames: Frames) -> I64:
    """The frames that end something: commits, and messages outside any transaction."""
    ends = np.flatnonzero(frames.kind == protocol.COMMIT)
    messages = np.flatnonzero(frames.kind == protocol.MESSAGE)
    if len(messages):
        flags = frames.bytes[frames.start[messages] + (FRAME_HEAD + 1)]
        ends = np.sort(np.concatenate([ends, messages[flags & 1 == 0]]))
    return ends


def _without_empty(frames: Frames) -> tuple[Frames, Lsn]:
    """Servers before 15 send a Begin and a Commit for every transaction that touched no table of ours:
    dropped here; the end of the last one is returned, for the log to move past it. A pair cut apart by
    a burst stays: it harms nothing."""
    kind = frames.kind
    empty = np.flatnonzero((kind[:-1] == protocol.BEGIN) & (kind[1:] == protocol.COMMIT))
    if not len(empty):
        return frames, Lsn(0)
    dropped = np.zeros(len(kind), np.bool_)
    dropped[empty] = dropped[empty + 1] = True
    return frames.without(dropped), protocol.parse_commit(frames.message(int(empty[-1]) + 1)).end
