"""What `status` shows: the source, capture, each pipeline and table, at this moment.

Reads the state, the source's catalogue and the log's headers; writes nothing. A state is believed only
while its owner lives (it holds an advisory lock), else it is `stopped`; its last error stays visible.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .capture import membership
from .capture.slot import read_slot
from .capture.start import SlotFacts
from .errors import RunnelError, counted
from .log.api import ChangeLog
from .postgres import catalog
from .postgres.connect import Connection, connect
from .postgres.lsn import Lsn
from .postgres.patterns import TablePatterns
from .progress.records import PipelineRow, Subscription
from .progress.state import CAPTURE, State

if TYPE_CHECKING:
    from .config import Config


FROM_FLAGS = "runnel"
"""The pipeline of `runnel run --sink`."""


@dataclass(slots=True)
class Overview:
    source: dict[str, Any]
    capture: dict[str, Any]
    pipelines: dict[str, dict[str, Any]]
    tables: dict[str, dict[str, Any]]
    notes: list[str] = field(default_factory=list)
    """For people: what needs a hand, and which command."""

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "capture": self.capture,
            "pipelines": self.pipelines,
            "tables": self.tables,
        }


@dataclass(frozen=True, slots=True)
class Pending:
    """What the log has beyond a position."""

    known: bool
    """False: the log cannot be read from here."""
    since: int | None = None
    """Commit time (µs) of the oldest undelivered transaction; None: nothing is pending."""


def overview(config: Config, log: ChangeLog | None) -> Overview:
    name = config.source.name
    with (
        State.connect(config.state_url, name) as state,
        connect(config.source_url, f"runnel {name}") as source,
    ):
        subscription = state.known()
        rows = state.pipelines()
        letters = state.letter_counts()
        alive = {who: state.owner(who) is not None for who in (CAPTURE, *rows)}
        server = catalog.server(source)
        slot = read_slot(source, subscription.slot)
        now = catalog.current_lsn(source)
        clock = catalog.clock(source)
        log_bytes, log_end = _log(log)
        received = max(_received(source, slot) or Lsn(0), log_end or Lsn(0)) or None
        tables = membership.read(source, subscription.publication, TablePatterns(config.source.tables))
    out = Overview(
        source={
            "name": name,
            "server": server.label,
            "system_id": server.system_id,
            "timeline": server.timeline,
            "slot": subscription.slot,
            "wal_status": "missing" if slot is None else slot.wal_status,
            "current_lsn": str(now),
            "confirmed_lsn": None if slot is None else str(slot.confirmed),
            "retained_bytes": None if slot is None else max(0, now - slot.confirmed),
            "safe_wal_bytes": None if slot is None else slot.safe_wal_bytes,
        },
        capture={
            "state": subscription.state if alive[CAPTURE] else "stopped",
            "received_lsn": _text(received),
            "log_lsn": _text(log_end),
            "log_bytes": log_bytes,
            "error": _error(subscription.error, subscription.detail),
        },
        pipelines={
            row.name: _pipeline(row, alive[row.name], received, _pending(log, row.position.lsn), clock)
            | {"dead_letters": letters.get(row.name, 0), "error": _error(row.error, row.detail)}
            for row in rows.values()
        },
        tables={
            table.label: {
                "published": table.published,
                "identity": table.identity,
                "reason": table.reason,
                "pipelines": {p: {"state": "live"} for p in rows} if table.published else {},
            }
            for table in tables.tables
        },
    )
    out.notes = _notes(config, subscription, slot, rows, alive, out)
    out.notes += [
        f"{t.label}: {t.reason}" + (f" → {t.remedy}" if t.remedy else "") for t in tables.problems()
    ]
    return out


def _pipeline(
    row: PipelineRow, alive: bool, received: Lsn | None, pending: Pending, clock: float
) -> dict[str, Any]:
    waits = pending.since is not None or not pending.known
    lag = max(0, received - row.position.lsn) if waits and received is not None else 0
    seconds: float | None = 0.0 if pending.known else None
    if pending.since is not None:
        seconds = round(max(0.0, clock - pending.since / 1e6), 3)
    idle = clock - row.updated_at.timestamp()
    rate = row.last_changes / max(row.last_seconds, idle, 0.001) if alive else 0.0
    return {
        "state": row.state if alive else "stopped",
        "lsn": str(row.position.lsn),
        "lag_bytes": lag,
        "lag_seconds": seconds,
        "changes": row.changes,
        "rate": round(rate, 1),
    }


def _pending(log: ChangeLog | None, position: Lsn) -> Pending:
    if log is None:
        return Pending(False)
    try:
        for chunk in log.chunks(position):
            if chunk.changes:
                reader = log.open(chunk.name)
                try:
                    header = reader.header
                    opened = header.transaction.time if header.transaction else header.first_time
                    return Pending(True, opened or chunk.last_time)
                finally:
                    reader.close()
    except (RunnelError, OSError):
        # trimmed under our eyes, or before the log's begin: capture's own checks say what that means
        return Pending(False)
    return Pending(True)


def _log(log: ChangeLog | None) -> tuple[int, Lsn | None]:
    if log is None:
        return 0, None
    try:
        usage = log.usage()
    except (RunnelError, OSError):
        return 0, None
    return usage.bytes, usage.end


def _received(source: Connection, slot: SlotFacts | None) -> Lsn | None:
    """What capture said it received; only its own role, or one that may see statistics, is shown that."""
    if slot is None or slot.active_pid is None:
        return None
    row = source.execute(
        "SELECT write_lsn::text FROM pg_stat_replication WHERE pid = %s", [slot.active_pid]
    ).fetchone()
    return Lsn.parse(row[0]) if row is not None and row[0] else None


def _error(error: str | None, detail: Any) -> str | None:
    if error is not None or detail is None:
        return error
    why = detail.get("why") if isinstance(detail, dict) else detail
    return None if why is None else str(why)


def _notes(
    config: Config,
    subscription: Subscription,
    slot: SlotFacts | None,
    rows: dict[str, PipelineRow],
    alive: dict[str, bool],
    out: Overview,
) -> list[str]:
    notes = []
    if slot is None:
        notes.append(f"slot {subscription.slot} does not exist any more → runnel destroy && runnel init")
    elif slot.invalidation or slot.wal_status == "lost":
        notes.append(f"slot {slot.name} was invalidated by the server → runnel destroy && runnel init")
    elif slot.wal_status in ("extended", "unreserved"):
        notes.append(f"slot {slot.name} holds back more WAL than the server plans for ({slot.wal_status})")
    for name, row in rows.items():
        if row.hold is not None:
            notes.append(
                f"pipeline {name} delivers again from {row.hold} on and holds the log"
                + ("" if alive[name] else f" → run it, or runnel remove {name}")
            )
        if name not in config.pipelines:
            if not alive[name]:
                notes.append(_unconfigured(name, alone=len(rows) == 1))
        elif row.paused:
            notes.append(f"pipeline {name} is paused and holds the slot → runnel resume {name}")
        elif not alive[name] and any(alive.values()):
            notes.append(
                f"pipeline {name} is not running and holds the slot → run it, or runnel remove {name}"
            )
    notes += [f"pipeline {p} is not known yet → runnel init" for p in config.pipelines if p not in rows]
    notes += [
        f"pipeline {name} has {counted(shown['dead_letters'], 'dead letter')}"
        f" → runnel dead-letters list {name}"
        for name, shown in out.pipelines.items()
        if shown["dead_letters"]
    ]
    return notes


def _unconfigured(name: str, *, alone: bool) -> str:
    if name == FROM_FLAGS:
        away = "runnel destroy" if alone else f"runnel remove {name}"
        return (
            f"pipeline {name} was started without a file and holds the slot → start it so again, or {away}"
        )
    return f"pipeline {name} is not configured and holds the slot → runnel remove {name}"


def _text(lsn: Lsn | None) -> str | None:
    return None if lsn is None else str(lsn)
