"""What tests share: real servers, a fresh database, a proxy in front, and Runnel's command line."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from product import Runnel, environment
from runnel.demo.scratch import Scratch, die_with_parent
from runnel.demo.server import Server
from servers import Database, MakeServer, Proxy, binaries

pytest.register_assert_rewrite("captured", "values")  # what differs is told as in a test


@pytest.fixture(scope="session")
def scratch() -> Iterator[Path]:
    """A directory that is gone after the run, also if the run is killed. Servers live here: pytest's own
    temporary directories cannot be entered by the user a server runs as."""
    with Scratch("runnel-tests-") as place:
        yield place.path


@pytest.fixture(scope="session")
def pg_server(scratch: Path) -> Iterator[Server]:
    """PostgreSQL 18, shared by the session. Do not stop it: `make_server` gives one of your own."""
    with Server(binaries(18), scratch / "pg").initialize().start() as server:
        yield server


@pytest.fixture
def pg(pg_server: Server) -> Iterator[Database]:
    """A fresh database on the shared server; its slots go with it."""
    name = f"t{uuid4().hex[:12]}"
    pg_server.create_database(name)
    yield Database(pg_server, name)
    pg_server.drop_database(name)


@pytest.fixture
def make_server(scratch: Path) -> Iterator[MakeServer]:
    made: list[Server] = []

    def make(version: int | str = 18, **settings: object) -> Server:
        server = Server(binaries(version), scratch / f"pg-{uuid4().hex[:8]}", settings)
        made.append(server)
        return server.initialize().start()

    yield make
    for server in made:
        server.destroy()


@pytest.fixture
def make_standby(scratch: Path) -> Iterator[Callable[[Server], Server]]:
    """A started streaming standby of a server."""
    made: list[Server] = []

    def make(primary: Server) -> Server:
        standby = primary.standby(scratch / f"pg-{uuid4().hex[:8]}")
        made.append(standby)
        return standby.start()

    yield make
    for server in made:
        server.destroy()


@pytest.fixture
def make_proxy() -> Iterator[Callable[[Server], Proxy]]:
    made: list[Proxy] = []

    def make(server: Server) -> Proxy:
        made.append(Proxy(server.host, server.port))
        return made[-1]

    yield make
    for proxy in made:
        proxy.close()


class RunnelCli:
    """`runnel …` in a directory of its own, as this checkout has it. Whatever it starts dies with us."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.started: list[subprocess.Popen[str]] = []

    def config(self, text: str) -> Path:
        path = self.directory / "runnel.yaml"
        path.write_text(text)
        return path

    def start(
        self, *arguments: str, env: Mapping[str, str] | None = None, stderr: int | None = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "runnel", *arguments],
            cwd=self.directory,
            env=environment(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
            preexec_fn=die_with_parent(),  # noqa: PLW1509 - two system calls, no locks
        )
        self.started.append(process)
        return process

    def run(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        timeout: float = 120,
        expect: int | Sequence[int] | None = 0,
    ) -> subprocess.CompletedProcess[str]:
        """Run to the end; `expect` is the exit code (None: any)."""
        process = self.start(*arguments, env=env)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"runnel {' '.join(arguments)} did not end\n{out}\n{err}") from None
        allowed = [expect] if isinstance(expect, int) else expect
        assert allowed is None or process.returncode in allowed, (
            f"runnel {' '.join(arguments)}: exit {process.returncode}\n{out}\n{err}"
        )
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def stop(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(timeout=20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


@pytest.fixture
def runnel_cli(tmp_path: Path) -> Iterator[RunnelCli]:
    cli = RunnelCli(tmp_path)
    yield cli
    cli.stop()


@pytest.fixture
def make_runnel(tmp_path: Path) -> Iterator[Callable[..., Runnel]]:
    """Runnel as its users meet it, in a directory of its own; whatever it started ends with the test."""
    made: list[Runnel] = []

    def make(url: str, **settings: Any) -> Runnel:
        made.append(Runnel(tmp_path, url, **settings))
        return made[-1]

    yield make
    for runnel in made:
        runnel.close()
