"""Real PostgreSQL servers for tests, a proxy that misbehaves in front of them, and patience."""

from .patience import await_condition
from .postgres import Database, MakeServer, binaries
from .proxy import Proxy

__all__ = ["Database", "MakeServer", "Proxy", "await_condition", "binaries"]
