"""The publication as the server has it, and whether it still is what the subscription was made with.

A dropped publication is no error to PostgreSQL 18: pgoutput leaves its changes out and its keepalives go
on, as if nothing happened. An altered one leaves out whatever it does not publish any more, on every
version. Nothing in the stream tells either from a quiet source.

What must hold: capture looks here after receiving and before it records that nothing happened, or
confirms anything to the slot.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass

from ..errors import Refused
from ..postgres.connect import Connection
from ..postgres.lsn import Lsn
from ..progress.records import Subscription

_COMMENT = re.compile(r"runnel subscription ([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
_PUBLISHES = ("insert", "update", "delete", "truncate")


@dataclass(frozen=True, slots=True)
class PublicationFacts:
    id: uuid.UUID | None
    """Of the subscription it was made for, by its comment; None: it is not Runnel's."""
    lacks: tuple[str, ...] = ()
    """Operations that it does not publish."""
    via_root: bool = True

    @property
    def altered(self) -> bool:
        return bool(self.lacks) or not self.via_root


def comment(subscription: Subscription) -> str:
    return f"runnel subscription {subscription.id}"


def read_publication(connection: Connection, name: str) -> PublicationFacts | None:
    row = connection.execute(
        "SELECT obj_description(oid, 'pg_publication'), pubviaroot, pubinsert, pubupdate, pubdelete,"
        " pubtruncate FROM pg_publication WHERE pubname = %s",
        [name],
    ).fetchone()
    if row is None:
        return None
    found = _COMMENT.search(row[0] or "")
    lacks = tuple(what for what, there in zip(_PUBLISHES, row[2:], strict=True) if not there)
    return PublicationFacts(uuid.UUID(found[1]) if found else None, lacks, row[1])


def check_publication(subscription: Subscription, found: PublicationFacts | None, since: Lsn) -> None:
    """`since`: up to here nothing can be missing."""
    name = subscription.publication
    afresh = "start afresh: runnel destroy && runnel init, then import again"
    gone = f"changes after {since} may be missing"
    if found is None:
        raise Refused(f"publication {name!r} does not exist any more: {gone}", hint=afresh)
    if found.id != subscription.id:
        raise Refused(f"publication {name!r} was made anew by somebody else: {gone}", hint=afresh)
    if found.altered:
        how = [f"does not publish {', '.join(found.lacks)} any more"] if found.lacks else []
        if not found.via_root:
            how.append("publishes partitions under their own names")
        raise Refused(
            f"publication {name!r} was altered by somebody else and {' and '.join(how)}: {gone}",
            hint="runnel init sets it right and goes on without what is missing; for whole targets "
            + afresh,
        )
