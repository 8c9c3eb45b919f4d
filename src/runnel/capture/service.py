"""The capture process: sessions one after the other, until told to stop or until going on is no use.

What must hold: whatever can heal by itself (the server restarts, the network breaks, the disk is full
for a while) is tried again with growing pauses; what cannot is raised with its remedy, and not retried.
"""

from __future__ import annotations

import logging
import random
import resource
import threading
import time

import psycopg

from .. import events
from ..config import Config
from ..errors import Kind, RunnelError, Transient
from ..log import open_log
from ..progress.owners import AlreadyRunning
from ..progress.state import CAPTURE, State
from .session import Session
from .trouble import Unconfirmed

_log = logging.getLogger(__name__)

_PAUSES = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
_GOOD_AFTER = 30.0
"""Seconds of streaming after which the next failure counts as the first again."""
_OWN_GHOST = 120.0
"""Seconds for which a claim refused after a loss may be our own dead connection, which the server has
not noticed yet."""


def run(config: Config, stop: threading.Event, *, confirm: bool = False) -> None:
    """Capture until `stop`. Raises what cannot heal, and with `confirm` also what kept the slot from
    showing, at the stop, what may be confirmed: whoever ends `--once` starts it again then."""
    _raise_file_limit()
    log = open_log(config.log.path, config.log.settings())
    failures = 0
    owned: float | None = None
    while True:
        session = Session(config, log, stop)
        try:
            session.run()
            return
        except (RunnelError, psycopg.Error, OSError) as error:
            trouble = _classify(error, ghost=owned is not None and time.monotonic() - owned < _OWN_GHOST)
        if session.streamed_since is not None:
            owned = time.monotonic()
            if owned - session.streamed_since > _GOOD_AFTER:
                failures = 0
        if stop.is_set() and trouble.kind is Kind.TRANSIENT:
            _stopped_short(config, trouble, confirm=confirm, ours=session.claimed)
            return
        if trouble.kind is not Kind.TRANSIENT:
            _leave_word(config, "failed", trouble, ours=session.claimed)
            raise trouble
        pause = _PAUSES[min(failures, len(_PAUSES) - 1)] * random.uniform(0.8, 1.2)
        failures += 1
        _log.warning("%s; trying again in %.1f s", trouble, pause)
        _leave_word(config, "reconnecting", trouble, ours=session.claimed)
        if stop.wait(pause):
            _stopped_short(config, trouble, confirm=confirm, ours=session.claimed)
            return


def _stopped_short(config: Config, trouble: RunnelError, *, confirm: bool, ours: bool) -> None:
    """Told to stop while the server was away, or would not listen: what is in the log is safe."""
    if confirm:
        raise trouble
    if isinstance(trouble, Unconfirmed):
        _log.warning("%s", trouble)
        _leave_word(config, "stopped", trouble, ours=ours)


def _classify(error: Exception, *, ghost: bool) -> RunnelError:
    if isinstance(error, AlreadyRunning) and ghost:
        return Transient(error.message, hint=error.hint)
    if isinstance(error, RunnelError):
        return error
    text = " ".join(str(error).split())
    if isinstance(error, OSError):
        return Transient(
            f"{text}", hint="free disk space or mend the file system; capture goes on by itself"
        )
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | psycopg.InternalError):
        return Transient(text, hint="capture connects again by itself; look at the server if it does not")
    return RunnelError(f"the server refused a query: {text}", hint="`runnel check` lists what is missing")


def _leave_word(config: Config, state: str, trouble: RunnelError, *, ours: bool) -> None:
    """For `status`, as far as the state database can be reached. Whoever was refused because another
    capture runs has nothing to say there."""
    events.emit("state", CAPTURE, state=state, error=trouble.message, hint=trouble.hint)
    if not ours:
        return
    try:
        with State.connect(config.state_url, config.source.name) as words:
            if words.installed():
                words.set_state(CAPTURE, state, error=trouble.message, detail={"hint": trouble.hint})
    except (psycopg.Error, RunnelError) as error:
        _log.debug("the state could not be told: %s", error)


def _raise_file_limit() -> None:
    """Parts of a large transaction are open files until they appear together."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and (hard == resource.RLIM_INFINITY or soft < hard):
        wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
