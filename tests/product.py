"""Runnel as its users meet it: the command line, its files and its processes, nothing from inside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import psycopg

from history import lsn_number, read_jsonl
from runnel.demo.scratch import die_with_parent

SOURCE = Path(__file__).parents[1] / "src"


def environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """For a `runnel` that runs this checkout's code from whatever directory."""
    path = os.pathsep.join([str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **(env or {})}


def eventually(
    what: str,
    condition: Callable[[], Any],
    timeout: float = 120.0,
    *,
    tell: Callable[[], object] | None = None,
) -> Any:
    """Wait until `condition()` is true and give its value; when time is up fail with `what` and `tell()`."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not in {timeout:.0f} s: {what}\n{tell() if tell else ''}"
        time.sleep(0.05)


class Runnel:
    """One configuration in a directory of its own."""

    def __init__(
        self,
        home: Path,
        url: str,
        *,
        name: str = "shop",
        sink: Mapping[str, Any] | None = None,
        **sections: Any,
    ) -> None:
        self.home, self.url, self.name = home, url, name
        self.out = home / "out"
        self.config: dict[str, Any] = {
            "source": {"url": url, "name": name},
            "pipelines": {"copy": {"sink": dict(sink or {"type": "files", "path": "out"})}},
            "spark": {"master": "local[2]"},
        }
        for section, values in sections.items():
            self.config[section] = {**self.config.get(section, {}), **values}
        self.processes: list[subprocess.Popen[str]] = []
        self.write()

    def write(self) -> None:
        (self.home / "runnel.yaml").write_text(json.dumps(self.config, indent=1))

    def start(
        self, *words: str, env: Mapping[str, str] | None = None, stdout: int = subprocess.DEVNULL
    ) -> subprocess.Popen[str]:
        log = open(self.home / "stderr.log", "a", encoding="utf-8")  # noqa: SIM115 - the child keeps it
        process = subprocess.Popen(
            [sys.executable, "-m", "runnel", *words],
            cwd=self.home, env=environment(env), text=True,
            stdin=subprocess.DEVNULL, stdout=stdout, stderr=log, preexec_fn=die_with_parent(),  # noqa: PLW1509
        )  # fmt: skip
        log.close()
        self.processes.append(process)
        return process

    def run(self, *words: str, code: int = 0, timeout: float = 180.0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "runnel", *words],
            cwd=self.home, env=environment(), text=True, capture_output=True, stdin=subprocess.DEVNULL,
            timeout=timeout, check=False,
        )  # fmt: skip
        assert done.returncode == code, f"`runnel {' '.join(words)}` gave {done.returncode}:\n{done.stderr}"
        return done

    def status(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.run("status", "--json").stdout)
        return value

    def stop(self, process: subprocess.Popen[str], code: int = 0) -> None:
        process.send_signal(signal.SIGTERM)
        process.wait(90)
        assert process.returncode == code, self.errors()

    def errors(self) -> str:
        return (self.home / "stderr.log").read_text()[-4000:]

    def lines(self) -> list[dict[str, Any]]:
        return read_jsonl(self.out)

    def position(self) -> int:
        try:
            record = json.loads((self.out / "_runnel" / "position.json").read_text())
        except (OSError, ValueError):
            return 0
        return lsn_number(record["position"]["lsn"])

    def await_delivery(self, timeout: float = 120.0) -> None:
        """Until everything committed by now is in the files."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            row = connection.execute("select pg_current_wal_insert_lsn()::text").fetchone()
            connection.execute("select pg_logical_emit_message(true, 'runnel', 'up to here')")
        assert row is not None
        end = lsn_number(row[0])
        eventually(f"delivery up to {row[0]}", lambda: self.position() > end, timeout, tell=self.errors)

    def tree(self, process: subprocess.Popen[str]) -> list[psutil.Process]:
        parent = psutil.Process(process.pid)
        return [parent, *parent.children(recursive=True)]

    def find(self, process: subprocess.Popen[str], *words: str) -> psutil.Process | None:
        """A process of the tree whose command line has all these words, the youngest first."""
        for one in reversed(self.tree(process)):
            try:
                if all(any(word in part for part in one.cmdline()) for word in words):
                    return one
            except psutil.Error:
                continue
        return None

    def kill_all(self, process: subprocess.Popen[str]) -> None:
        """kill -9 of the whole tree at once."""
        for one in self.tree(process):
            try:
                one.kill()
            except psutil.Error:
                continue
        process.wait()

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                self.kill_all(process)
