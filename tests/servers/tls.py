"""Speaks TLS in front of a server that was built without it, as the server would: asked for by the client's
first words, and nothing goes on without it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import threading
from pathlib import Path

_ASKS_FOR_TLS = bytes.fromhex("0000000804d2162f")
_BLOCK = 1 << 16


class TlsFront:
    def __init__(self, host: str, port: int, certificate: Path, key: Path) -> None:
        self.applications: set[str] = set()
        """Names under which clients came, once they spoke TLS."""
        self.unencrypted = 0
        """Clients that began without TLS; they were sent away."""
        self._upstream = (host, port)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tls", daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop
        ).result(10)
        self.host, self.port = self._server.sockets[0].getsockname()

    def url(self, url: str) -> str:
        """The same URL through this front."""
        host, port = self._upstream
        return url.replace(f"{host}:{port}", f"{self.host}:{self.port}")

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # a client that does not trust us, or is killed, is no failure of ours
        with contextlib.suppress(OSError, EOFError, asyncio.CancelledError), contextlib.closing(writer):
            if await reader.readexactly(len(_ASKS_FOR_TLS)) != _ASKS_FOR_TLS:
                self.unencrypted += 1
                return
            writer.write(b"S")
            await writer.drain()
            await writer.start_tls(self._context)
            first = await reader.read(_BLOCK)
            self.applications |= set(
                re.findall(r"application_name\0([^\0]*)", first.decode(errors="replace"))
            )
            there, back = await asyncio.open_connection(*self._upstream)
            with contextlib.closing(back):
                back.write(first)
                pumps = [asyncio.create_task(_pump(*pair)) for pair in ((reader, back), (there, writer))]
                _, others = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                for other in others:
                    other.cancel()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_BLOCK):
            writer.write(data)
            await writer.drain()
