"""Keeps a process that brings its own server away from the user's databases."""

from __future__ import annotations

from collections.abc import MutableMapping

_LEADS_ELSEWHERE = ("RUNNEL_", "PG")
_OURS = ("RUNNEL_DEBUG",)
"""From the command line, and leads nowhere."""


def forget_databases(environment: MutableMapping[str, str]) -> None:
    """Remove what overrides a configuration or a URL: `RUNNEL_SOURCE_URL` and the others like it, libpq's
    `PGHOSTADDR` and `PGSERVICE`. Done to the process itself, it holds for the children too."""
    for name in [name for name in environment if name.startswith(_LEADS_ELSEWHERE)]:
        if name not in _OURS:
            del environment[name]
