"""`make setup` on machines that lack something: one line says what to install."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[2] / "scripts" / "setup"
TOOLS = ("bash", "env", "cat", "cksum", "dirname", "head", "sed", "rm", "id", "chmod")


class Machine:
    """A copy of the script, and a PATH on which only what the test puts there can be found."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = root / "bin"
        (root / "scripts").mkdir()
        self.bin.mkdir()
        shutil.copy(SETUP, root / "scripts" / "setup")
        (root / "requirements.lock").write_text("uv==1\n")
        (root / "pyproject.toml").write_text("")
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found, tool
            (self.bin / tool).symlink_to(found)

    def tool(self, name: str, script: str) -> Path:
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!{shutil.which('bash')}\n{script}\n")
        path.chmod(0o755)
        return path

    def java(self, version: str) -> None:
        self.tool("java", f"echo 'openjdk version \"{version}\" 2026-01-01' >&2")

    def run(self, **environ: str) -> subprocess.CompletedProcess[str]:
        env = {"PATH": str(self.bin), "HOME": str(self.root), **environ}
        return subprocess.run(
            [str(self.root / "scripts" / "setup")], capture_output=True, text=True, env=env, check=False
        )

    def already_set_up(self) -> None:
        inside = self.root / ".venv" / "bin"
        inside.mkdir(parents=True)
        (inside / "runnel").write_text("")
        (inside / "runnel").chmod(0o755)
        state = subprocess.run(
            ["bash", "-c", "cat requirements.lock pyproject.toml scripts/setup | cksum; pwd"],
            cwd=self.root,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        (self.root / ".venv" / ".set-up").write_text(state.rstrip("\n"))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_java_one_line_says_what_to_install(machine: Machine) -> None:
    done = machine.run()
    assert done.returncode == 1
    assert done.stderr == (
        "setup: Spark needs Java 17 or later: install openjdk-17-jre-headless"
        " (or set JAVA_HOME to a Java 17+)\n"
    )


def test_an_old_java_is_not_enough(machine: Machine) -> None:
    machine.java("11.0.2")
    done = machine.run()
    assert done.returncode == 1
    assert "Spark needs Java 17 or later" in done.stderr


def test_an_old_java_home_is_named(machine: Machine) -> None:
    machine.tool("../home/bin/java", "echo 'java version \"1.8.0\"' >&2")
    done = machine.run(JAVA_HOME=str(machine.root / "home"))
    assert done.returncode == 1
    assert "JAVA_HOME is Java 1, Spark needs 17 or later" in done.stderr


def test_java_home_counts_before_the_path(machine: Machine) -> None:
    machine.java("11.0.2")
    machine.tool("../home/bin/java", "echo 'openjdk version \"21.0.1\"' >&2")
    machine.already_set_up()
    assert machine.run(JAVA_HOME=str(machine.root / "home")).returncode == 0


def test_root_gets_java_from_apt(machine: Machine) -> None:
    machine.tool("id", "echo 0")
    machine.java("17.0.9")
    java, package = machine.bin / "java", machine.root / "package"
    java.rename(package)
    machine.tool("apt-get", f"cat {package} >{java}; chmod +x {java}")
    machine.already_set_up()
    done = machine.run()
    assert done.returncode == 0, done.stderr
    assert "installing openjdk-17-jre-headless" in done.stderr


def test_apt_that_fails_ends_with_the_same_line(machine: Machine) -> None:
    machine.tool("id", "echo 0")
    machine.tool("apt-get", "exit 100")
    done = machine.run()
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("setup: Spark needs Java 17 or later: install")


def test_without_a_recent_python_one_line_says_so(machine: Machine) -> None:
    machine.java("17.0.9")
    machine.tool("python3", "exit 1")
    done = machine.run()
    assert done.returncode == 1
    assert (
        done.stderr == "setup: Python 3.11 or later is needed: install python3.11 (or set PYTHON to one)\n"
    )


def test_a_second_time_does_nothing(machine: Machine) -> None:
    machine.java("17.0.9")
    machine.already_set_up()
    done = machine.run()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_lock_names_no_server_and_has_a_hash_for_everything() -> None:
    lock = (SETUP.parents[1] / "requirements.lock").read_text()
    assert "://" not in lock
    blocks = [block for block in lock.replace("\\\n", " ").splitlines() if block.strip()]
    assert all("--hash=sha256:" in block for block in blocks)
    assert any(block.startswith("pyspark==4.1.4 ") for block in blocks)
    assert os.access(SETUP, os.X_OK)
