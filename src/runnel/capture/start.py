"""At start: which disagreement between server, slot, log and positions is a gap, and which is legal.

Facts in, a decision out, no I/O: `Go` says where to stream from, `Refused` names what was lost and
the way out. Postgres silently forwards a START_REPLICATION below the slot's confirmed LSN, so nothing
but these checks stands between a lost change and silence.

`confirmed` is the slot's, a position a pipeline's, `first` and `end` the range the log holds. All
are end LSNs: everything committed before is behind us.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import Refused
from ..log.api import Lineage
from ..postgres.lsn import Lsn
from ..progress.position import Position
from ..progress.records import Subscription
from .publication import PublicationFacts, check_publication


@dataclass(frozen=True, slots=True)
class ServerFacts:
    system_id: str
    timeline: int
    history: str | None = None
    """Text of TIMELINE_HISTORY for `timeline`; needed only where it differs from the subscription's."""


@dataclass(frozen=True, slots=True)
class SlotFacts:
    name: str
    confirmed: Lsn
    restart: Lsn | None = None
    wal_status: str | None = "reserved"
    invalidation: str | None = None
    """Why the server gave it up, in its own words (16+: a conflict; 17+: invalidation_reason)."""
    failover: bool = False
    plugin: str = "pgoutput"
    database: str = ""
    active_pid: int | None = None
    temporary: bool = False
    safe_wal_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class LogFacts:
    first: Lsn | None = None
    end: Lsn | None = None
    """None: the log is empty."""
    lineage: Lineage | None = None
    path: str = "the change log"


@dataclass(frozen=True, slots=True)
class Go:
    start: Lsn
    """For START_REPLICATION; where the next chunk begins unless `bridge` says otherwise."""
    lineage: Lineage
    """Of everything written from now on. Differs from the subscription's after a failover: store it
    with `State.change_lineage` before the first chunk."""
    bridge: tuple[Lsn, Lsn] | None = None
    """(begin, start]: append a chunk without frames first. What lay there no pipeline needs, or nothing
    happened there; in an empty log `begin` is the slowest position."""
    notes: tuple[str, ...] = ()
    """Said to the user once: legal, but worth knowing."""


def decide(
    subscription: Subscription,
    server: ServerFacts,
    slot: SlotFacts | None,
    log: LogFacts,
    positions: Mapping[str, Position],
    *,
    publication: PublicationFacts | None,
    ack: str = "sink",
) -> Go:
    """`positions`: what is recorded for every pipeline, running or not."""
    name = subscription.name
    slot = _usable(subscription, slot)
    _same_system(subscription, server)
    check_publication(subscription, publication, slot.confirmed)
    if log.lineage is not None and not subscription.owns(log.lineage):
        raise Refused(
            f"{log.path} belongs to slot {log.lineage.slot!r} of server {log.lineage.system_id}, not to"
            f" {subscription.slot!r}",
            hint="give this subscription a log of its own (log.path), or move the old directory away",
        )
    lineage, notes = _timeline(subscription, server, slot, log, positions)

    if log.lineage is not None and log.end is not None and not log.lineage.same_source(lineage):
        check_follows(log.end, log.path, slot)
    for pipeline, position in positions.items():
        check_position(pipeline, position, subscription, log, slot.confirmed)
    base = subscription.consistent_lsn
    lowest = min(positions.items(), key=lambda item: item[1].lsn, default=None)
    if lowest is not None:
        recorded, whose = lowest[1].lsn, f"the position of {lowest[0]!r}"
    else:  # nobody needs anything: capture confirms whatever is in the log
        recorded, whose = max(base, slot.confirmed if log.end is None else log.end), "the log's end"
    if ack == "log" and log.end is not None and log.end > recorded:
        recorded, whose = log.end, "the log's end"
    # After `init --accept-server` the slot may stand past every record with nothing between (pg_upgrade
    # makes sure of it): up to the subscription's own start nobody else advanced it.
    if slot.confirmed > max(recorded, base) and not _quiet(subscription, recorded, slot.confirmed):
        raise Refused(
            f"slot {slot.name!r} is confirmed up to {slot.confirmed}, past {whose} {recorded}:"
            " somebody else advanced it, and the changes between are gone",
            hint=f"find who uses the slot; then start afresh: runnel destroy && runnel init ({name!r})",
        )

    if log.end is None:
        behind = min(recorded, slot.confirmed) if positions else slot.confirmed
        bridge = (behind, slot.confirmed) if behind < slot.confirmed else None
        return Go(slot.confirmed, lineage, bridge, notes)
    if log.end >= slot.confirmed:
        return Go(log.end, lineage, None, notes)
    note = f"the log ends at {log.end}, before the slot's {slot.confirmed}; every pipeline is past that"
    return Go(slot.confirmed, lineage, (log.end, slot.confirmed), (*notes, note))


def _quiet(subscription: Subscription, position: Lsn, confirmed: Lsn) -> bool:
    """Capture itself told the slot so, and wrote down that nothing happened between."""
    if subscription.quiet is None:
        return False
    begin, end = subscription.quiet
    return begin <= position and confirmed <= end


def check_position(
    pipeline: str, position: Position, subscription: Subscription, log: LogFacts, confirmed: Lsn
) -> None:
    """One pipeline's position, recorded by us or by its sink, against what log and slot still have."""
    if not subscription.owns(position.lineage):
        theirs = position.lineage
        raise Refused(
            f"pipeline {pipeline!r}: its target's position {position.lsn} is of slot {theirs.slot!r}"
            f" on server {theirs.system_id}, not of {subscription.slot!r}"
            f" on {subscription.lineage.system_id}",
            hint="this target was filled from another source or subscription: give the pipeline a target"
            " of its own, or empty this one",
        )
    if log.first is None or position.lsn >= log.first:
        lost = log.first is None and position.lsn < confirmed
        if lost and not _quiet(subscription, position.lsn, confirmed):
            raise Refused(
                f"pipeline {pipeline!r} is at {position.lsn}, but the log is empty and slot"
                f" {subscription.slot!r} begins at {confirmed}: the changes between are gone",
                hint=f"restore the log, or import again: runnel remove {pipeline} && runnel init",
            )
        return
    if position.lsn < confirmed:
        raise Refused(
            f"pipeline {pipeline!r} is at {position.lsn}, but the log begins at {log.first} and slot"
            f" {subscription.slot!r} at {confirmed}: was its target restored from a backup?",
            hint=f"import again: runnel remove {pipeline}, empty the target, runnel init",
        )
    raise Refused(
        f"pipeline {pipeline!r} is at {position.lsn}, before the log's begin {log.first};"
        f" slot {subscription.slot!r} still has everything from {confirmed}",
        hint=f"move {log.path} away: capture fills a new one from the slot",
    )


def _usable(subscription: Subscription, slot: SlotFacts | None) -> SlotFacts:
    again = f"start afresh: runnel destroy && runnel init ({subscription.name!r}), then import again"
    if slot is None:
        raise Refused(
            f"slot {subscription.slot!r} does not exist any more:"
            " changes since the last confirmed one are gone",
            hint=again,
        )
    if slot.name != subscription.slot or not slot.name.endswith(f"_{subscription.id.hex[:8]}"):
        raise Refused(
            f"slot {slot.name!r} is not the one of subscription {subscription.id} ({subscription.slot!r})",
            hint=again,
        )
    if slot.plugin != "pgoutput":
        raise Refused(f"slot {slot.name!r} uses the plugin {slot.plugin!r}, not pgoutput", hint=again)
    if slot.invalidation or slot.wal_status == "lost":
        raise Refused(
            f"slot {slot.name!r} was invalidated by the server"
            f" ({slot.invalidation or 'its WAL was removed'}): changes are gone",
            hint=f"{again}; and raise max_slot_wal_keep_size or idle_replication_slot_timeout",
        )
    return slot


def _same_system(subscription: Subscription, server: ServerFacts) -> None:
    ours = subscription.lineage.system_id
    if server.system_id != ours:
        raise Refused(
            f"this is another server: its system identifier is {server.system_id}, the subscription"
            f" {subscription.name!r} was made on {ours}",
            hint="check source.url; after pg_upgrade: runnel init --accept-server",
        )


def _timeline(
    subscription: Subscription,
    server: ServerFacts,
    slot: SlotFacts,
    log: LogFacts,
    positions: Mapping[str, Position],
) -> tuple[Lineage, tuple[str, ...]]:
    ours, written = subscription.lineage, log.lineage
    if written is not None and written.system_id == server.system_id and log.end is not None:
        # also where `init --accept-server` took the server's timeline for ours: it did not see the log
        switched(written.timeline, server, log.end)
    if server.timeline == ours.timeline:
        return ours, ()
    reached = max(log.end or Lsn(0), *(p.lsn for p in positions.values()), Lsn(0))
    left = switched(ours.timeline, server, reached)
    sentence = f"the server went from timeline {ours.timeline} to {server.timeline} at {left}"
    if not slot.failover:
        raise Refused(
            f"{sentence}, and slot {slot.name!r} is not a failover slot: whether it followed"
            " cannot be known",
            hint="if it was carried over with everything it held (a tool that keeps slots on standbys, a"
            " copy of the data directory): runnel init --accept-server; else start afresh: runnel destroy"
            " && runnel init; source.failover: true makes the slot follow on PostgreSQL 17 and later",
        )
    lineage = Lineage(ours.system_id, server.timeline, ours.slot)
    return lineage, (f"{sentence}: a clean failover, nothing was lost",)


def switched(timeline: int, server: ServerFacts, reached: Lsn) -> Lsn:
    """Where the server left this timeline. Refused if what we have of it, up to `reached`, it has not."""
    if timeline == server.timeline:
        return reached
    left = None if server.history is None else switch_point(server.history, timeline)
    sentence = f"the server went from timeline {timeline} to {server.timeline}"
    if left is None:
        raise Refused(
            f"{sentence}, and its history does not know ours: changes up to {reached} may not exist there",
            hint=f"go back to the server of timeline {timeline}, or start afresh:"
            " runnel destroy && runnel init",
        )
    if left < reached:
        raise Refused(
            f"{sentence} at {left}, but changes up to {reached} were captured before: those after {left} no"
            " longer exist at the source and may stand in the targets",
            hint=f"remove from the targets what has an lsn of {left} or later, then"
            " runnel destroy && runnel init",
        )
    return left


def check_follows(reached: Lsn, what: str, slot: SlotFacts) -> None:
    """On an accepted server of another system the slot begins at or past all that we have: else its LSNs
    say nothing about ours, and its changes would pass for delivered ones."""
    if reached > slot.confirmed:
        raise Refused(
            f"{what} is at {reached} by the former server's count, but slot {slot.name!r} begins at"
            f" {slot.confirmed} on this one: its LSNs do not follow those of before",
            hint="pg_upgrade keeps them rising; for a server that was filled otherwise start afresh:"
            " runnel destroy && runnel init, into empty targets",
        )


def switch_point(history: str, timeline: int) -> Lsn | None:
    """Where `timeline` was left, by the text of a timeline history file; None: it is not an ancestor.

    Lines are `timeline <tab> LSN <tab> reason`; empty ones and comments are allowed.
    """
    for line in history.splitlines():
        parts = line.split("#", 1)[0].split(None, 2)
        if len(parts) >= 2 and parts[0].isdigit() and int(parts[0]) == timeline:
            return Lsn.parse(parts[1])
    return None
