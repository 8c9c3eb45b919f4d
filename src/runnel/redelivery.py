"""Dead letters delivered again, while their pipeline does not run.

What comes in: a pipeline's letters, all or those of a table or a key. What goes out: their changes in
the sink, beside the stream and in the order of (lsn, seq); the letters are gone, their keys parked no
longer.

What must hold:
- the pipeline is claimed, so that nothing else writes to its sink and no key is parked meanwhile;
- letters are forgotten only after the sink's commit. A target that holds its position names them in
  that commit, so that whoever repeats a replay that died in between knows what is there already;
- a letter is delivered only if the position has passed it, else the pipeline delivers it once more;
- the letters of one row stay in order, whatever keys it had: behind one that is rejected again all
  later ones stay, and with them the key stays parked.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import takewhile
from typing import cast

import numpy as np

from .changes.block import Window
from .changes.decode import decode
from .errors import Refused, RunnelError
from .failpoints import failpoint
from .log.api import ChangeLog
from .postgres.lsn import Lsn
from .progress.letters import Key, Letter, keys
from .progress.state import State
from .settings import SinkSettings
from .sinks.api import Attempt, LetterWriter, Name, Receipt, Reject, Sink
from .sinks.opening import open_sink
from .sinks.registry import SINKS, SinkContext

SLICE = 1000
"""Most letters in one commit: the target's record names each of them."""
SLICE_BYTES = 16 << 20


@dataclass(slots=True)
class Outcome:
    delivered: int = 0
    found: int = 0
    """An earlier replay had brought so many to the sink, without living to forget them."""
    rejected: list[Reject] = field(default_factory=list)
    behind: int = 0
    """Letters that stay because one of their row was rejected before them."""
    ahead: int = 0
    """Letters that the pipeline has stored but not yet passed."""


class Redelivery:
    def __init__(
        self, state: State, log: ChangeLog, pipeline: str, settings: SinkSettings, stages: str
    ) -> None:
        """`stages`: where sinks without a place of their own stage (`Config.stages`)."""
        self._state = state
        self._log = log
        self._pipeline = pipeline
        self._type = SINKS[settings.type]
        context = SinkContext(pipeline, f"{stages}/{pipeline}", begun=not state.is_fresh(pipeline))
        self._sink: Sink = self._type.sink(settings, context)
        self._stuck = Stuck()
        self._outcome = Outcome()

    def run(self, *, table: str | None = None, key: str | None = None) -> Outcome:
        outcome = self._outcome
        recorded = self._state.claim_pipeline(self._pipeline, wait=0)
        with closing(self._sink) as sink:
            position = open_sink(sink, self._pipeline, recorded, self._state).lsn
            known = sink.redelivered()
            if known:  # all of them, chosen or not: the next commit names others
                outcome.found = self._state.drop_letters(self._pipeline, at=sorted(known))
            letters = choose(self._state.letters(self._pipeline, by_key=False), table, key)
            passed = [_reject(letter) for letter in letters if letter.lsn < position]
            outcome.ahead = len(letters) - len(passed)
            for some in _slices(passed):
                self._deliver(some, position)
            if known or outcome.delivered:
                sink.redeliver((), ())
        self._state.release(self._pipeline)
        return outcome

    def _deliver(self, letters: list[Reject], position: Lsn) -> None:
        """One slice: what is rejected, and what stays behind it, is left out and the rest tried again."""
        rejected: dict[Name, Reject] = {}
        while letters := self._free(letters, rejected):
            names = tuple((letter.lsn, letter.seq) for letter in letters)
            payload, rejects = self._write(letters, names, position)
            if not rejects:
                failpoint("letters.written")
                self._sink.redeliver(names, [Receipt(0, len(names), payload)])
                failpoint("letters.delivered")
                self._state.drop_letters(self._pipeline, at=names)
                failpoint("letters.forgotten")
                self._outcome.delivered += len(names)
                return
            self._state.explain_letters(self._pipeline, rejects)
            rejected = {(reject.lsn, reject.seq): reject for reject in rejects}
            if rejected.keys().isdisjoint(names):  # once more would be for ever
                raise RunnelError("the sink rejects a change that it was not given: please report it")

    def _free(self, letters: list[Reject], rejected: dict[Name, Reject]) -> list[Reject]:
        free = []
        for letter in letters:
            again = rejected.get((letter.lsn, letter.seq))
            if self._stuck.holds(letter):
                self._outcome.behind += 1
            elif again is not None:
                self._outcome.rejected.append(again)
            else:
                free.append(letter)
                continue
            self._stuck.add(letter)
        return free

    def _write(
        self, letters: Sequence[Reject], names: tuple[Name, ...], position: Lsn
    ) -> tuple[dict[str, object], list[Reject]]:
        """One attempt with all of them: a receipt's payload, or what was rejected."""
        attempt = Attempt(position, position, 0, uuid.uuid4().hex, letters=names)
        writer = self._type.writer(self._sink.task(), attempt)
        finished = False
        try:
            rejects: list[Reject] = []
            if self._sink.capabilities.default_json:
                rejects += cast(LetterWriter, writer).write_letters(letters)
            else:
                for window in windows(self._log, names):
                    rejects += writer.write(window)
            if rejects:
                return {}, rejects
            payload = dict(writer.finish())
            finished = True
            return payload, []
        finally:
            if not finished:
                writer.abort()


class Stuck:
    """Rows whose next letter cannot be delivered, under every key that their letters give them."""

    def __init__(self) -> None:
        self._keys: dict[str, set[str | None]] = {}

    def add(self, letter: Reject | Letter) -> None:
        self._keys.setdefault(letter.table, set()).update(key for _, key in keys(letter))

    def holds(self, letter: Reject | Letter) -> bool:
        """A letter without a key is about all of its table."""
        stuck = self._keys.get(letter.table, set())
        if letter.key is None or None in stuck:
            return bool(stuck)
        return not stuck.isdisjoint(key for _, key in keys(letter))


def choose(letters: list[Letter], table: str | None, key: str | None) -> list[Letter]:
    """The letters meant, in order. A key means the whole row: its letters under earlier and later keys
    too, or they would be delivered out of order."""
    some = [letter for letter in letters if table is None or letter.table == table]
    if key is None:
        return some
    meant: set[Key] = {(letter.table, key) for letter in some}
    while True:
        chosen = [letter for letter in some if not meant.isdisjoint(keys(letter))]
        found = {one for letter in chosen for one in keys(letter)}
        if found <= meant:
            return chosen
        meant |= found


def windows(log: ChangeLog, names: Iterable[Name]) -> Iterator[Window]:
    """These changes from the log, in order, and nothing else. A window is valid until the next one."""
    left = sorted(set(names))
    while left:
        lsn = left[0][0]
        try:
            parts = list(takewhile(lambda ref: ref.start <= lsn, log.chunks(lsn)))  # noqa: B023
        except Refused as error:
            raise _gone(log, lsn) from error
        if not parts:
            raise _gone(log, lsn)
        here = {name for name in left if name[0] < parts[-1].end}
        left = left[len(here) :]
        for ref in parts:
            with closing(log.open(ref.name)) as reader:
                for window in decode(reader, lsn):
                    places = _places(window, here)
                    if places:
                        yield window.select(np.array(places))
        if here:
            raise _gone(log, min(here)[0])


def _places(window: Window, names: set[Name]) -> list[int]:
    """Where the window has these changes; they are taken out of `names`."""
    lsns = np.array([int(lsn) for lsn, _ in names], np.int64)
    found = []
    for sheet in window.sheets:
        lsn = window.lsn(sheet)
        for row in np.flatnonzero(np.isin(lsn, lsns)).tolist():
            name = (Lsn(int(lsn[row])), int(sheet.seq[row]))
            if name in names:
                names.remove(name)
                found.append(int(sheet.order[row]))
    return sorted(found)


def _gone(log: ChangeLog, lsn: Lsn) -> RunnelError:
    return RunnelError(
        f"the log no longer holds the letter's change at {lsn}: it begins at {log.usage().first}",
        hint="this sink writes typed values, which only the log has: set log.retain to keep delivered"
        " changes; `runnel dead-letters show` prints this one, to bring it over by hand before `drop`",
    )


def _slices(letters: Iterable[Reject]) -> Iterator[list[Reject]]:
    some: list[Reject] = []
    size = 0
    for letter in letters:
        if some and (len(some) >= SLICE or size + len(letter.change) > SLICE_BYTES):
            yield some
            some, size = [], 0
        some.append(letter)
        size += len(letter.change)
    if some:
        yield some


def _reject(letter: Letter) -> Reject:
    return Reject(
        letter.lsn, letter.seq, letter.table, letter.key, letter.change, letter.reason, letter.old_key
    )
