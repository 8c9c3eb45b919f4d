"""What the server's refusals mean to capture: which heal by themselves, and what mends the others."""

from __future__ import annotations

from ..errors import Refused, RunnelError, Transient

_AFRESH = "start afresh: runnel destroy && runnel init, then import again"

_FINAL: dict[str, str] = {
    # only what START_REPLICATION and the stream itself can say; connecting has its own list
    "28000": "check the user in the URL, its REPLICATION attribute and pg_hba.conf",
    "28P01": "check user and password in the URL",
    "42501": "ALTER ROLE … REPLICATION (or the provider's role), and what `runnel check` names",
    "42601": "use a Runnel version that supports this server version",
    "42704": _AFRESH,
    "0A000": "use a Runnel version that supports this server version",
    "58P01": _AFRESH,
}


class Unconfirmed(Transient):
    """At a stop the server did not take the last word: the slot still shows less than was delivered."""


def stream_error(sqlstate: str | None, message: str, server: str) -> RunnelError:
    """`server`: where, for people, without a password."""
    text = f"replication from {server}: {' '.join(message.split())}"
    if sqlstate == "55006":  # the slot is in use: a walsender that has not noticed yet, or a stranger
        return Transient(text, hint="capture tries again; if it stays so, find who else reads the slot")
    if sqlstate == "42704" and "publication" in message:
        # Found while decoding old changes: the publication did not exist yet, or was dropped since.
        return Refused(text, hint=f"somebody dropped the publication; {_AFRESH}")
    if "can no longer" in message or "invalidated" in message:
        # The checks at the next start refuse it, and know why the server gave the slot up.
        return Transient(text, hint="capture looks at the slot again")
    if sqlstate == "55000":
        return Refused(text, hint=f"{_AFRESH}; and see wal_level on the server")
    if sqlstate in _FINAL:
        return Refused(text, hint=_FINAL[sqlstate])
    return Transient(text, hint="capture connects again by itself; look at the server if it does not")
