"""Every failure a user can see: what happened to which object, and what to do next.

`kind` is the classification; the reaction (retry, stop, dead letter, exit code) belongs to whoever
catches it. `str(error)` is one sentence; `hint` is one line with the command, setting or SQL that
mends it. Neither ever holds a secret.
"""

from __future__ import annotations

from enum import StrEnum

HINT = "→ "


class Kind(StrEnum):
    USAGE = "usage"
    """Wrong command line or configuration. Exit code 2."""
    REFUSED = "refused"
    """Going on could lose or double a change, or somebody else owns the object. Never retried."""
    TRANSIENT = "transient"
    """May heal by itself: retried with back-off."""
    DATA = "data"
    """A change that this sink can never take: `on_error` decides."""
    FAILED = "failed"
    """Anything else a user can cause or must see. Not retried by itself."""


class RunnelError(Exception):
    def __init__(self, message: str, *, hint: str = "", kind: Kind = Kind.FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.kind = kind
        if hint:  # a traceback shows it too: Spark hands on no more than that
            self.add_note(HINT + hint)

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process borders (Spark pickles them); keyword-only fields need help.
        return (_rebuild, (type(self), self.message, self.hint, self.kind))


def _rebuild(cls: type[RunnelError], message: str, hint: str, kind: Kind) -> RunnelError:
    error = cls.__new__(cls)
    RunnelError.__init__(error, message, hint=hint, kind=kind)
    return error


class UsageError(RunnelError):
    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint, kind=Kind.USAGE)


class Refused(RunnelError):
    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint, kind=Kind.REFUSED)


class Transient(RunnelError):
    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint, kind=Kind.TRANSIENT)


def counted(number: int, noun: str) -> str:
    """`1 table`, `2 tables`: as messages say it."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
