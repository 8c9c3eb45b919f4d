"""A TCP proxy that misbehaves on command: cuts, stalls, delays, refuses.

    with Proxy("127.0.0.1", 5432) as proxy:
        connect to 127.0.0.1, proxy.port
        proxy.cut()            # all connections are reset; new ones work
        proxy.stall()          # connections stay, no byte passes, new ones hang
        proxy.stall({40123})   # only connections of these clients' ports; all others, and new ones, work
        proxy.resume()
        proxy.refuse()         # cut, and new ones are refused until resume()
        proxy.delay = 0.2      # every block of bytes, in both directions

One thread with a selector; bytes are held here, at most 256 kB a direction, so that back-pressure passes.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Collection

_BLOCK = 1 << 16
_HELD = 1 << 18


class _Flow:
    """One direction of one connection."""

    def __init__(self, source: socket.socket, target: socket.socket, client: int) -> None:
        self.client = client
        """The client's port, in both directions."""
        self.source = source
        self.target = target
        self.waiting: deque[tuple[float, bytes]] = deque()
        self.held = 0
        self.ended = False
        self.closed = False


class Proxy:
    def __init__(self, host: str, port: int) -> None:
        self.delay = 0.0
        self.passed = 0
        """Bytes that went through, both directions."""
        self.connections = 0
        """Accepted so far."""
        self._upstream = (host, port)
        self._stalled = False
        self._silent: frozenset[int] = frozenset()
        self._refusing = False
        self._commands: deque[str] = deque()
        self._pairs: list[tuple[_Flow, _Flow]] = []
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.host, self.port = self._listener.getsockname()
        self._done = False
        self._applied = threading.Event()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    def url(self, url: str) -> str:
        """The same URL through this proxy."""
        host, port = self._upstream
        return url.replace(f"{host}:{port}", f"{self.host}:{self.port}")

    def cut(self) -> None:
        self._tell("cut")

    def stall(self, clients: Collection[int] | None = None) -> None:
        if clients is None:
            self._tell("stall")
        else:
            self._silent = frozenset(clients)
            self._tell("look again")

    def refuse(self) -> None:
        self._tell("refuse")

    def resume(self) -> None:
        self._tell("resume")

    def close(self) -> None:
        if not self._done:
            self._tell("close")
            self._thread.join(timeout=5)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tell(self, command: str) -> None:
        self._applied.clear()
        self._commands.append(command)
        self._wake_write.send(b"x")
        if not self._applied.wait(timeout=5):
            raise AssertionError("the proxy does not answer")

    def _run(self) -> None:
        while not self._done:
            self._watch()
            events = self._selector.select(self._pause()) if self._selector.get_map() else []
            if any(key.fileobj is self._wake_read for key, _ in events):
                self._obey()  # which may close what the other events are about
                continue
            for key, mask in events:
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.data, dict):
                    if mask & selectors.EVENT_READ:
                        self._receive(key.data["reads"])
                    if mask & selectors.EVENT_WRITE:
                        self._send(key.data["writes"])
            self._reap()
        for pair in self._pairs:
            _reset(pair)
        for some in (self._listener, self._wake_read, self._wake_write):
            some.close()
        self._selector.close()

    def _watch(self) -> None:
        """Which sockets to wait for follows from the state; few connections, so it is built anew."""
        wanted: dict[socket.socket, tuple[int, object]] = {self._wake_read: (selectors.EVENT_READ, None)}
        if not self._refusing and not self._stalled:
            wanted[self._listener] = (selectors.EVENT_READ, None)
        now = time.monotonic()
        if not self._stalled:
            for one, two in self._pairs:
                if one.client in self._silent:
                    continue
                for reads, writes in ((one, two), (two, one)):
                    mask = 0
                    if not reads.ended and reads.held < _HELD:
                        mask |= selectors.EVENT_READ
                    if writes.waiting and writes.waiting[0][0] <= now:
                        mask |= selectors.EVENT_WRITE
                    if mask:
                        wanted[reads.source] = (mask, {"reads": reads, "writes": writes})
        for key in list(self._selector.get_map().values()):
            self._selector.unregister(key.fileobj)
        for some, (mask, data) in wanted.items():
            self._selector.register(some, mask, data)

    def _pause(self) -> float | None:
        if self._stalled:
            return None
        flows = [flow for pair in self._pairs for flow in pair]
        due = [f.waiting[0][0] for f in flows if f.waiting and f.client not in self._silent]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _obey(self) -> None:
        self._wake_read.recv(100)
        while self._commands:
            command = self._commands.popleft()
            if command in ("cut", "refuse"):
                for pair in self._pairs:
                    _reset(pair)
                self._pairs.clear()
            if command == "refuse" and not self._refusing:
                self._refusing = True
                self._listener.close()
            if command == "stall":
                self._stalled = True
            if command == "resume":
                self._stalled, self._silent = False, frozenset()
                if self._refusing:
                    self._listener = socket.create_server((self.host, self.port))
                    self._listener.setblocking(False)
                    self._refusing = False
            if command == "close":
                self._done = True
        self._applied.set()

    def _accept(self) -> None:
        client, (_, port) = self._listener.accept()
        try:
            server = socket.create_connection(self._upstream, timeout=5)
        except OSError:
            client.close()
            return
        for some in (client, server):
            some.setblocking(False)
            some.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connections += 1
        self._pairs.append((_Flow(client, server, port), _Flow(server, client, port)))

    def _receive(self, flow: _Flow) -> None:
        try:
            data = flow.source.recv(_BLOCK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            flow.waiting.append((time.monotonic() + self.delay, data))
            flow.held += len(data)
        else:
            flow.ended = True

    def _send(self, flow: _Flow) -> None:
        due, data = flow.waiting.popleft()
        try:
            sent = flow.target.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            flow.ended = flow.closed = True
            flow.waiting.clear()
            return
        self.passed += sent
        flow.held -= sent
        if sent < len(data):
            flow.waiting.appendleft((due, data[sent:]))

    def _reap(self) -> None:
        for pair in list(self._pairs):
            for flow in pair:
                if flow.ended and not flow.waiting and not flow.closed:
                    flow.closed = True
                    with contextlib.suppress(OSError):
                        flow.target.shutdown(socket.SHUT_WR)
            if all(flow.closed for flow in pair):
                for flow in pair:
                    flow.source.close()
                self._pairs.remove(pair)


def _reset(pair: tuple[_Flow, _Flow]) -> None:
    for flow in pair:
        with contextlib.suppress(OSError):  # linger 0: the peer sees a reset, not a polite end
            flow.source.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        flow.source.close()
