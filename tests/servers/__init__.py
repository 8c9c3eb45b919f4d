"""Real PostgreSQL servers for tests, what stands in front of them (a proxy that
misbehaves, TLS), and patience."""

from .patience import await_condition
from .postgres import Database, MakeServer, binaries
from .proxy import Proxy
from .tls import TlsFront

__all__ = ["Database", "MakeServer", "Proxy", "TlsFront", "await_condition", "binaries"]
