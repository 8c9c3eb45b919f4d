"""The subscription: a publication and a slot at the source, bound by a uuid, made and dropped together.

The uuid stands in Runnel's own row, in the publication's comment and in the slot's name. It is made in
steps, each of which the next `init` finds and goes on from, wherever the last one was killed:
row (the intent) → publication with comment and tables, in one transaction → slot → row completed, with
every pipeline's position. The publication comes first: pgoutput needs it at every point of the slot, and
because making the slot waits for all running transactions, none can have written into a table before
it was published and commit after.
What must hold: a recreated publication or slot never goes on silently; a publication that is not
Runnel's is never touched.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from ..errors import Refused, RunnelError, counted
from ..failpoints import failpoint
from ..log.api import Lineage
from ..postgres import catalog
from ..postgres.catalog import Server
from ..postgres.connect import Connection, connect
from ..postgres.lsn import Lsn
from ..postgres.patterns import TablePatterns
from ..progress.records import Subscription
from ..progress.state import State
from . import membership
from .membership import Membership
from .publication import (
    check_publication,
    comment,
    mend_publication,
    options,
    read_publication,
)
from .settling import (
    alone,
    compare,
    horizon,
    not_renewed,
    oldest_running,
    read_rows,
    settle,
    were_out,
)
from .slot import (
    Say,
    create_slot,
    make_failover,
    read_slot,
    slot_exists,
    wait_for_running,
)
from .start import ServerFacts, SlotFacts, check_follows, switched

if TYPE_CHECKING:
    from ..config import Config


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the configuration asks for."""

    name: str
    tables: Sequence[str] = ("*.*",)
    pipelines: Sequence[str] = ()
    failover: bool = False
    accept_server: bool = False
    mend: bool = True
    """As a user asks for it: set right a publication that somebody altered, and go on without what it left
    out meanwhile; refuse what a table that is captured has come to lack; wait for open transactions. The
    implied one of `run` does not: nothing is captured before it ends."""


@dataclass(slots=True)
class Outcome:
    subscription: Subscription
    membership: Membership
    created: bool
    registered: dict[str, Lsn] = field(default_factory=dict)
    """Pipelines that were not known before, and where each begins."""
    notes: list[str] = field(default_factory=list)


def init_from(config: Config, say: Say, *, accept_server: bool = False, mend: bool = True) -> Outcome:
    """What a whole configuration asks for: `runnel init`, and the implied one of `run`."""
    source, pipelines = config.source, tuple(config.pipelines)
    wanted = Wanted(source.name, source.tables, pipelines, source.failover, accept_server, mend)
    with State.connect(config.state_url, source.name) as state:
        return init(config.source_url, state, wanted, say)


def init(url: str, state: State, wanted: Wanted, say: Say) -> Outcome:
    """Make the subscription, or go on with what is there; tables and pipelines join. May be repeated."""
    patterns = TablePatterns(wanted.tables)
    with connect(url, f"runnel {wanted.name} init") as source:
        server = _primary(catalog.server(source))
        members = () if wanted.mend else read_rows(source, wanted.name).keys()
        membership.require_grantable(catalog.tables(source), patterns, members)
        state.install()
        with alone(state):
            subscription = state.subscription()
            if subscription is not None and subscription.complete:
                return _adopt(url, source, state, subscription, server, wanted, patterns, say)
            return _create(url, source, state, subscription, server, wanted, patterns, say)


def slot_name(name: str, id_: uuid.UUID) -> str:
    return f"{name}_{id_.hex[:8]}"


def server_facts(source: Connection) -> ServerFacts:
    server = catalog.server(source)
    return ServerFacts(server.system_id, server.timeline)


def _create(
    url: str,
    source: Connection,
    state: State,
    noted: Subscription | None,
    server: Server,
    wanted: Wanted,
    patterns: TablePatterns,
    say: Say,
) -> Outcome:
    name, notes = wanted.name, []
    bound = publication_id(source, name)
    if bound == "foreign":
        raise Refused(
            f"publication {name!r} exists and is not Runnel's",
            hint=f'choose another source.name, or DROP PUBLICATION "{name}"',
        )
    if noted is not None:
        _same_server(noted, server)
    if isinstance(bound, uuid.UUID):
        _refuse_anothers(source, name, bound, noted)
    slot: SlotFacts | None = None
    if noted is None:
        # Runnel's own rows may be lost while the source still has the rest: that is still one piece. But
        # never a new slot under an old uuid: a position of the old one would look valid.
        if isinstance(bound, uuid.UUID):
            slot = read_slot(source, slot_name(name, bound))
        id_ = bound if slot is not None and isinstance(bound, uuid.UUID) else uuid.uuid4()
        if slot is not None:
            notes.append(
                f"adopted slot {slot.name} and publication {name}: pipelines begin at {slot.confirmed}"
            )
        noted = state.create_subscription(
            id_, slot_name(name, id_), name, server.system_id, server.timeline
        )
    state.note_tables(wanted.tables)
    failpoint("init.noted")
    report = _publish(source, noted, patterns)
    failpoint("init.published")
    say(f"publication {name}: {counted(sum(t.published for t in report.tables), 'table')}")
    # a slot that is there, adopted or made by an interrupted init, waited for transactions of before the
    # tables that joined just now
    existed = slot_exists(source, noted.slot)
    consistent = create_slot(url, source, noted.slot, failover=wanted.failover, say=say)
    made = read_slot(source, noted.slot)
    if wanted.failover and (made is None or not made.failover):
        notes.append(make_failover(url, noted.slot))
    failpoint("init.slot")
    notes += _settle(source, state, noted, report, say, waited=not existed)
    state.complete_subscription(consistent, wanted.pipelines)
    say(f"slot {noted.slot} begins at {consistent}")
    return Outcome(state.known(), report, slot is None, dict.fromkeys(wanted.pipelines, consistent), notes)


def _refuse_anothers(source: Connection, name: str, bound: uuid.UUID, noted: Subscription | None) -> None:
    """What stands at the source may be the living subscription of another installation, whose state is in
    another database: two captures on one slot would each get a part of the changes."""
    theirs = slot_name(name, bound)
    hint = "choose another source.name; or, if it is this installation's, give its state.url or stop it"
    slot = read_slot(source, theirs)
    if slot is not None and slot.active_pid is not None:
        raise Refused(f"slot {theirs!r} is in use (server process {slot.active_pid})", hint=hint)
    if noted is None and slot is None and slot_exists(source, theirs):
        raise Refused(f"slot {theirs!r} is being made by another `runnel init`", hint=hint)
    if noted is not None and noted.id != bound and slot_exists(source, theirs):
        raise Refused(
            f"publication {name!r} belongs to subscription {bound} with slot {theirs!r}, not to {noted.id}",
            hint=hint,
        )


def _adopt(
    url: str,
    source: Connection,
    state: State,
    subscription: Subscription,
    server: Server,
    wanted: Wanted,
    patterns: TablePatterns,
    say: Say,
) -> Outcome:
    name, notes = wanted.name, []
    again = "start afresh: runnel destroy && runnel init"
    slot = read_slot(source, subscription.slot)
    if slot is None:
        raise Refused(
            f"slot {subscription.slot!r} does not exist any more: changes since then are gone", hint=again
        )
    if slot.database != server.database:
        raise Refused(
            f"slot {slot.name!r} is of database {slot.database!r}, this is {server.database!r}",
            hint="check source.url, or choose another source.name",
        )
    if slot.invalidation or slot.wal_status == "lost":
        raise Refused(
            f"slot {slot.name!r} was invalidated by the server"
            f" ({slot.invalidation or 'its WAL was removed'}): changes are gone",
            hint=again,
        )
    moved = server.system_id != subscription.lineage.system_id
    if moved and not wanted.accept_server:
        _same_server(subscription, server)
    # pg_upgrade gives the publication another oid
    as_made = replace(subscription, publication_oid=None) if moved else subscription
    published = check_publication(
        as_made, read_publication(source, name), slot.confirmed, may_be_altered=wanted.mend
    )
    if moved or subscription.publication_oid is None:
        rows = read_rows(source, name)
        known = rows if subscription.publication_oid is None else rows.keys() & subscription.members
        state.note_members(published.oid, {table: rows[table].oid for table in known})
    if moved:
        for pipeline, row in state.pipelines().items():
            if not row.position.lineage.same_source(Lineage(server.system_id, 0, subscription.slot)):
                check_follows(row.position.lsn, f"pipeline {pipeline!r}", slot)
        notes.append(f"accepted server {server.system_id} in place of {subscription.lineage.system_id}")
        state.change_lineage(
            Lineage(server.system_id, server.timeline, subscription.slot), base=slot.confirmed
        )
    elif wanted.accept_server and server.timeline != subscription.lineage.timeline:
        notes.append(_accept_promotion(url, state, subscription, server))
    if wanted.failover and not slot.failover:
        notes.append(make_failover(url, slot.name))
    if published.altered:
        did = " and ".join(mend_publication(source, name, published))
        notes.append(
            f"publication {name} had been altered: it {did}; it is set right again, what happened in"
            " between was not captured as it should have been"
        )
    state.note_tables(wanted.tables)
    report = membership.reconcile(source, name, patterns, lock_timeout="60s")
    _all_published(report)
    if report.added:
        say(f"publication {name}: added {', '.join(report.added)}")
    if report.dropped:
        say(f"publication {name}: dropped {', '.join(report.dropped)}")
    mended = {member.oid for member in published.narrowed}
    notes += _settle(source, state, state.known(), report, say, told=mended, wait=wanted.mend)
    joined = {
        pipeline: state.join(pipeline, partial(catalog.current_lsn, source))
        for pipeline in wanted.pipelines
    }
    registered = {pipeline: lsn for pipeline, lsn in joined.items() if lsn is not None}
    return Outcome(state.known(), report, False, registered, notes)


def _settle(
    source: Connection,
    state: State,
    subscription: Subscription,
    report: Membership,
    say: Say,
    *,
    waited: bool = False,
    wait: bool = True,
    told: Collection[int] = (),
) -> list[str]:
    """Whatever is in the publication counts from here on (see settling.py). `waited`: for all that ran when
    the last table joined. Without `wait`, while something runs, what joined is left to capture. `told`:
    tables known to have been out. Gives what the user must know."""
    name = subscription.publication
    now, found = read_rows(source, name), read_publication(source, name)
    assert found is not None  # noqa: S101 - made or checked above
    difference = compare(subscription.members, now, (table.oid for table in report.tables))
    settled = {table: row.oid for table, row in difference.fresh.items()}
    failed: dict[str, str] = {}
    if not waited:
        fresh = difference.fresh
        if fresh and wait:
            wait_for_running(source, say)
        elif fresh and oldest_running(source) < horizon(source):
            names = ", ".join(row.sql for row in fresh.values())
            say(f"{names}: complete once the transactions that are open now have ended")
            fresh = {}
        settled, failed = settle(source, name, fresh)
    state.note_members(found.oid, settled, difference.gone)
    out = [t for t in difference.returned if t in settled and t not in told]
    return [were_out(now[table], name) for table in out] + [
        not_renewed(table, why) for table, why in failed.items()
    ]


def _accept_promotion(url: str, state: State, subscription: Subscription, server: Server) -> str:
    """The user says that the slot followed. That nothing delivered was lost is still proved here, that
    nothing in the log was, when capture starts."""
    from .stream import ReplicationStream

    stream = ReplicationStream(url, f"runnel {subscription.name} init")
    try:
        facts = ServerFacts(server.system_id, server.timeline, stream.timeline_history(server.timeline))
    finally:
        stream.close()
    ours = subscription.lineage
    reached = max((row.position.lsn for row in state.pipelines().values()), default=Lsn(0))
    left = switched(ours.timeline, facts, reached)
    state.change_lineage(Lineage(ours.system_id, server.timeline, ours.slot))
    return f"accepted timeline {server.timeline}, which left {ours.timeline} at {left}"


def _publish(source: Connection, subscription: Subscription, patterns: TablePatterns) -> Membership:
    name = sql.Identifier(subscription.publication)
    try:
        with source.transaction():
            found = read_publication(source, subscription.publication)
            if found is None:
                wanted = sql.SQL(", ").join(options(source.info.server_version))
                source.execute(sql.SQL("CREATE PUBLICATION {} WITH ({})").format(name, wanted))
            else:
                mend_publication(source, subscription.publication, found)
            text = sql.Literal(comment(subscription))
            source.execute(sql.SQL("COMMENT ON PUBLICATION {} IS {}").format(name, text))
            report = membership.reconcile(source, subscription.publication, patterns, lock_timeout="60s")
            _all_published(report)
            return report
    except psycopg.errors.InsufficientPrivilege as error:
        user, database = source.info.user, source.info.dbname
        raise RunnelError(
            f"cannot make publication {subscription.publication!r}: {error.diag.message_primary}",
            hint=f'GRANT CREATE ON DATABASE "{database}" TO "{user}" (and the role must own the tables)',
        ) from error


def _all_published(report: Membership) -> None:
    """Everything committed after `init` is delivered: it may not end while a table is still to come."""
    for table in report.tables:
        if table.failed:
            raise RunnelError(
                f"{table.label} could not be published: {table.reason}", hint="run `runnel init` again"
            )


def publication_id(source: Connection, name: str) -> uuid.UUID | str | None:
    """The uuid in its comment; "foreign": there is one without; None: there is none."""
    found = read_publication(source, name)
    return None if found is None else found.id or "foreign"


def _primary(server: Server) -> Server:
    if server.in_recovery:
        raise RunnelError(
            "the source is a standby: publications are made on the primary", hint="give the primary's URL"
        )
    return server


def _same_server(subscription: Subscription, server: Server) -> None:
    if server.system_id != subscription.lineage.system_id:
        raise Refused(
            f"this is another server: its system identifier is {server.system_id}, the subscription"
            f" {subscription.name!r} was made on {subscription.lineage.system_id}",
            hint="check source.url; after pg_upgrade: runnel init --accept-server",
        )
