"""Removing a subscription: its slot, its publication, its rows, and the schema with the last one.

What must hold: what is another installation's stays, unless the state knows nothing and the user insists;
whatever step was the last, the next `destroy` goes on from there. The slot goes first: nothing else of
ours can fill the server's disk.
"""

from __future__ import annotations

import uuid

from psycopg import sql

from ..errors import Refused
from ..failpoints import failpoint
from ..postgres.connect import connect
from ..progress.state import CAPTURE, State
from .slot import Say, drop_slot
from .subscription import publication_id, slot_name


def destroy(url: str, state: State, name: str, say: Say, *, force: bool = False) -> None:
    """Remove slot, publication, rows, and the schema with the last subscription. May be repeated. `force`:
    where this state knows none, also what stands at the source, which may be another installation's."""
    with connect(url, f"runnel {name} destroy") as source:
        state.migrate()
        subscription = state.subscription()
        for who in (CAPTURE, *state.pipelines()) if subscription is not None else ():
            owner = state.owner(who)
            if owner is not None:
                raise Refused(f"{who} of {name!r} is running: {owner}", hint="stop it, then runnel destroy")
        bound = publication_id(source, name)
        ours = subscription.id if subscription is not None else None
        if ours is None and isinstance(bound, uuid.UUID):
            if not force:
                raise _unknown(name, bound, state)
            ours = bound
        if ours is not None:
            slot = slot_name(name, ours)
            if drop_slot(source, slot):
                say(f"slot {slot} dropped")
            failpoint("destroy.slot")
        if bound == "foreign":
            say(f"publication {name} is not Runnel's: left as it is")
        elif bound is not None and bound != ours:
            say(f"publication {name} is of another subscription, {bound}: left as it is")
        elif bound is not None:
            source.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(name)))
            say(f"publication {name} dropped")
        failpoint("destroy.publication")
        if subscription is None and bound is None:
            say(f"there is no subscription {name}")
        gone = state.uninstall()
        if subscription is not None:
            say("schema runnel dropped" if gone else f"state of {name} removed; other subscriptions stay")


def _unknown(name: str, bound: uuid.UUID, state: State) -> Refused:
    slot = slot_name(name, bound)
    return Refused(
        f"publication {name!r} with slot {slot!r} is of a subscription that the state in database"
        f" {state.connection.info.dbname!r} does not know: another installation's may go on with it",
        hint="give the state.url it was made with; if it is nobody's: runnel destroy --force, or"
        f" SELECT pg_drop_replication_slot('{slot}'); DROP PUBLICATION \"{name}\"",
    )
