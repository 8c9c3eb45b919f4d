"""What README and docs/ tell a user to type is what Runnel understands."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from runnel.cli import main as cli
from runnel.config import load

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.S | re.M)


def blocks(language: str) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for kind, text in BLOCK.findall(page.read_text()):
            if kind == language:
                found.append((str(page.relative_to(ROOT)), text))
    return found


def commands() -> list[tuple[str, str]]:
    """Every line of a shell block that calls runnel, without its comment."""
    found = []
    for page, text in blocks("sh"):
        for line in text.splitlines():
            call = re.search(r"(?:^|\| *)(runnel .*)", line.partition(" #")[0].partition(" | ")[0].strip())
            if call:
                found.append((page, call[1]))
    return found


@cache
def options(command: str) -> set[str]:
    from typer.testing import CliRunner

    done = CliRunner().invoke(cli.build(command.split()), [*command.split(), "--help"])
    assert done.exit_code == 0, done.output
    return set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", done.output))


@pytest.mark.parametrize(("page", "line"), commands())
def test_a_command_in_the_docs_exists_with_its_options(page: str, line: str) -> None:
    words = shlex.split(line)[1:]
    if words[0] == "-c":
        words = words[2:]
    assert words[0] in cli.COMMANDS, line
    if words[0] not in cli.available():
        pytest.fail(f"{page} names `{line}`, which is not there")
    if words[0] == "dead-letters":
        words = [f"{words[0]} {words[1]}", *words[2:]]
    for word in words[1:]:
        if word.startswith("-"):
            assert word.partition("=")[0] in options(words[0]), line


@pytest.mark.parametrize(
    ("page", "text"), [(page, text) for page, text in blocks("yaml") if "source:" in text]
)
def test_a_configuration_in_the_docs_is_accepted(page: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "runnel.yaml"
    path.write_text(text)
    config = load(path, environ={"SOURCE_URL": "postgresql://me@localhost/shop"})
    assert config.pipelines


@pytest.mark.parametrize(
    ("page", "text"), [(page, text) for page, text in blocks("yaml") if text.startswith("pipelines:")]
)
def test_pipelines_in_the_docs_are_accepted(page: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "runnel.yaml"
    path.write_text("source: {url: postgresql://me@localhost/shop}\n" + text)
    assert load(path, environ={}).pipelines


def test_every_command_stands_in_the_command_reference() -> None:
    page = (ROOT / "docs" / "commands.md").read_text()
    for name in cli.COMMANDS:
        assert re.search(rf"`[^`]*\b{name}\b", page), name


def test_python_in_the_docs_compiles() -> None:
    for page, text in blocks("python"):
        compile(text, page, "exec")
