"""Where tables for people are drawn."""

from __future__ import annotations

import sys

from rich.console import Console


def console() -> Console:
    """As wide as the terminal; in a pipe or a file wide enough that a line stays one line."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 200)
