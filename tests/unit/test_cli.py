"""The command line: what it answers, what it imports, and how every failure reads."""

from __future__ import annotations

import json
import logging
import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import psycopg
import pytest

from runnel import __version__
from runnel.cli import main as cli
from runnel.cli.failures import report
from runnel.cli.invocation import LogFormat
from runnel.cli.logs import HumanFormatter, JsonFormatter, setup_logging
from runnel.config import load
from runnel.errors import Kind, Refused, RunnelError, UsageError
from runnel.failures import explain


def runnel(*arguments: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    env = dict(os.environ) | environ
    return subprocess.run(
        [sys.executable, "-m", "runnel", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=env,
        check=False,
    )


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line hands settings down through the environment: each test has its own."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    for name in [name for name in os.environ if name.startswith("RUNNEL_")]:
        del os.environ[name]
    monkeypatch.setattr("runnel.cli.main.setup_logging", lambda *_, **__: None)


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A command of the test's own: `version` does what the test wants."""
    module = ModuleType("runnel.cli.version")
    monkeypatch.setitem(sys.modules, "runnel.cli.version", module)
    return module


def outcome(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


def raising(error: BaseException) -> object:
    def version() -> None:
        raise error

    return version


def test_version_says_which_and_exits_0() -> None:
    done = runnel("version")
    assert done.returncode == 0
    assert done.stdout.startswith(f"runnel {__version__} ")
    assert runnel("--version").stdout == done.stdout


def test_help_lists_every_command_that_exists() -> None:
    done = runnel("--help")
    assert done.returncode == 0
    for name in cli.available():
        assert f"\n  {name} " in done.stdout
    assert runnel().returncode == 2
    assert runnel().stdout == done.stdout


@pytest.mark.parametrize("name", cli.available())
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(name, "--help") == 0
    shown = capsys.readouterr().out
    assert f"Usage: runnel {name}" in shown
    assert cli.COMMANDS[name] in " ".join(shown.split())


@pytest.mark.parametrize("arguments", [["--help"], ["version"]])
def test_a_quick_answer_loads_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys, atexit\n"
        "heavy = ('pyspark', 'pyarrow', 'numpy', 'psycopg')\n"
        "atexit.register(lambda: print([name for name in heavy if name in sys.modules]))\n"
        "from runnel.cli.main import main\n"
        f"main({arguments!r})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ), check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_wrong_configuration_is_two_lines_and_exit_code_2(
    probe: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    probe.version = raising(UsageError("runnel.yaml:3: source.url: missing", hint="add url: …"))  # type: ignore[attr-defined]
    assert outcome("version") == 2
    assert capsys.readouterr().err == "runnel: runnel.yaml:3: source.url: missing\n  → add url: …\n"


def test_a_failure_is_exit_code_1_without_traceback_and_without_secrets(
    probe: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    probe.version = raising(RunnelError("cannot reach postgresql://me:hunter22@db/x", hint="look"))  # type: ignore[attr-defined]
    assert outcome("version") == 1
    shown = capsys.readouterr().err
    assert shown == "runnel: cannot reach postgresql://me:********@db/x\n  → look\n"


def test_debug_shows_the_traceback_without_secrets(
    probe: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    probe.version = raising(RunnelError("cannot reach postgresql://me:hunter22@db/x", hint="look"))  # type: ignore[attr-defined]
    assert outcome("--debug", "version") == 1
    shown = capsys.readouterr().err
    assert "Traceback (most recent call last)" in shown
    assert "hunter22" not in shown


def test_an_interrupt_is_exit_code_130(probe: ModuleType) -> None:
    probe.version = raising(KeyboardInterrupt())  # type: ignore[attr-defined]
    assert outcome("version") == 130


def test_a_command_chooses_its_exit_code(probe: ModuleType) -> None:
    probe.version = lambda: 1  # type: ignore[attr-defined]
    assert outcome("version") == 1
    probe.version = lambda: None  # type: ignore[attr-defined]
    assert outcome("version") == 0


def test_a_refusal_tells_a_supervisor_not_to_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    error = Refused("another server", hint="look")
    monkeypatch.delenv("RUNNEL_EVENTS_FD", raising=False)
    assert report(error, debug=False) == 1
    monkeypatch.setenv("RUNNEL_EVENTS_FD", "3")
    assert report(error, debug=False) == 3


@pytest.mark.parametrize(
    ("arguments", "said", "remedy"),
    [
        (["vesion"], "no such command 'vesion'. Did you mean 'version'?", "runnel --help"),
        (["version", "--foo"], "version: no such option: --foo", "runnel version --help"),
        (["version", "-c", "x"], "version: no such option: -c", "before the command: runnel -c … version"),
        (["--log-format", "x", "version"], "'--log-format': 'x' is not one of", "runnel --help"),
        (["cat", ""], "path: '' cannot be read", "a path or URL"),
        (["cat", "s3://"], "path: 's3://' cannot be read", "a path or URL"),
        (["cat", "s3://me:pw-of-mine@bucket/x"], "path: no credentials in the path", "environment"),
        (["pipeline", "a", "--until", "0/zz"], "--until: '0/zz' is not an LSN", "0/16B3748"),
        (
            ["dead-letters", "list", "--limit", "-5"],
            "dead-letters list: invalid value for '--limit'",
            "--help",
        ),
        (["version", "extra"], "version: got unexpected extra argument", "runnel version --help"),
    ],
)
def test_wrong_usage_is_exit_code_2_with_a_remedy(
    arguments: list[str],
    said: str,
    remedy: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "runnel.yaml").write_text("source: {url: postgresql://me@db/x}")
    monkeypatch.chdir(tmp_path)
    assert outcome(*arguments) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert remedy in shown
    assert len(shown.splitlines()) == 2


def test_a_wrong_log_format_in_the_environment_is_wrong_usage(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNEL_LOG_FORMAT", "xml")
    assert outcome("version") == 2
    said = ["runnel: RUNNEL_LOG_FORMAT: 'xml' is not allowed", "  → allowed: human, json"]
    assert capsys.readouterr().err.splitlines() == said


def test_a_server_that_is_not_there_is_explained() -> None:
    with pytest.raises(psycopg.OperationalError) as caught:
        psycopg.connect("postgresql://me:hunter22@127.0.0.1:1/shop", connect_timeout=2)
    error = explain(caught.value)
    assert error.message.startswith("cannot reach the database: ")
    assert "hunter22" not in error.message
    assert error.kind is Kind.TRANSIENT


def test_an_error_of_the_server_is_explained_by_its_sqlstate() -> None:
    error = explain(psycopg.errors.InsufficientPrivilege("permission denied for table users"))
    assert error.message == "the database said: permission denied for table users (SQLSTATE 42501)"
    assert "runnel check" in error.hint


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (psycopg.errors.ConnectionFailure, Kind.TRANSIENT),
        (psycopg.errors.SerializationFailure, Kind.TRANSIENT),
        (psycopg.errors.DeadlockDetected, Kind.TRANSIENT),
        (psycopg.errors.TooManyConnections, Kind.TRANSIENT),
        (psycopg.errors.DiskFull, Kind.TRANSIENT),
        (psycopg.errors.AdminShutdown, Kind.TRANSIENT),
        (psycopg.errors.CrashShutdown, Kind.TRANSIENT),
        (psycopg.errors.CannotConnectNow, Kind.TRANSIENT),
        (psycopg.errors.DatabaseDropped, Kind.FAILED),
        (psycopg.errors.QueryCanceled, Kind.FAILED),
        (psycopg.errors.UndefinedTable, Kind.FAILED),
    ],
)
def test_an_error_of_the_server_that_may_heal_is_told_from_one_that_lasts(
    error: type[psycopg.Error], kind: Kind
) -> None:
    assert explain(error("said so")).kind is kind


def test_the_command_that_removes_a_slot_made_without_a_file_finds_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from runnel.cli.run import _removal

    monkeypatch.chdir(tmp_path)
    assert _removal("postgresql://db/shop") == "RUNNEL_SOURCE_URL=postgresql://db/shop runnel destroy"
    (tmp_path / "runnel.yaml").write_text("source: {url: postgresql://other/db, name: other}")
    command = _removal("postgresql://me:pa55word@db/shop?sslmode=require&sslrootcert=/ca.pem")
    assert "pa55word" not in command
    password, source, *rest = shlex.split(command)
    assert (password, rest) == ("PGPASSWORD=…", ["runnel", "-c", "/dev/null", "destroy"])
    name, _, url = source.partition("=")
    config = load(Path(rest[2]), environ={name: url})
    assert (config.source_url, config.source.name) == (
        "postgresql://me@db/shop?sslmode=require&sslrootcert=/ca.pem",
        "runnel",
    )


def test_a_full_disk_is_explained() -> None:
    error = explain(OSError(28, "No space left on device", "/data/x"))
    assert error.message == "/data/x: No space left on device"
    assert "free some disk space" in error.hint


def test_what_nobody_foresaw_is_called_a_bug() -> None:
    error = explain(ZeroDivisionError("division by zero"))
    assert error.message == "unexpected ZeroDivisionError: division by zero"
    assert "bug" in error.hint


def record(message: str, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("runnel.capture.stream", logging.WARNING, "x", 1, message, None, None)
    made.fields = fields
    made.created = 1795934580.5
    return made


def test_a_log_line_for_machines_is_one_json_object() -> None:
    line = json.loads(JsonFormatter().format(record("lost postgresql://a:bcdefg@h/x", lsn="0/1")))
    assert line == {
        "time": "2026-11-29T06:43:00.500000Z",
        "level": "warning",
        "from": "capture",
        "message": "lost postgresql://a:********@h/x",
        "lsn": "0/1",
    }


def test_a_log_line_for_people_says_who_and_what() -> None:
    line = HumanFormatter().format(record("lost postgresql://a:bcdefg@h/x", lsn="0/1"))
    assert line.endswith(" capture: warning: lost postgresql://a:********@h/x lsn=0/1")


def test_logging_goes_to_stderr_once(capsys: pytest.CaptureFixture[str]) -> None:
    root, runnel_logger = logging.getLogger(), logging.getLogger("runnel")
    kept = root.handlers[:], root.level, runnel_logger.level
    try:
        setup_logging(LogFormat.HUMAN)
        setup_logging(LogFormat.HUMAN)
        logging.getLogger("runnel.capture").info("hello")
        logging.getLogger("runnel.capture").debug("hidden")
        shown = capsys.readouterr()
    finally:
        root.handlers[:], level, runnel_level = kept
        root.setLevel(level)
        runnel_logger.setLevel(runnel_level)
    assert shown.out == ""
    assert shown.err.count("capture: hello") == 1
    assert "hidden" not in shown.err
