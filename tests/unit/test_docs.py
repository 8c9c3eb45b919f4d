"""What README and docs/ tell a user to type is what Runnel understands."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from pages import PAGES, ROOT, blocks, calls
from runnel.cli import main as cli
from runnel.config import load

HINT = re.compile(r"\brunnel ((?:dead-letters )?[a-z][a-z-]+)((?: (?:--?[a-z][a-z-]*|[A-Z]+…?))*)")


def commands() -> list[tuple[str, str]]:
    """What stands in shell blocks, and in the text between backticks."""
    found = [(page, line) for page, text in blocks("sh") for line in calls(text)]
    for path in PAGES:
        page = str(path.relative_to(ROOT))
        found += [
            (page, line) for line in re.findall(r"`(runnel (?:-c \S+ )?[a-z][^`]*)`", path.read_text())
        ]
    return list(dict.fromkeys(found))


def hints() -> list[tuple[str, str, str]]:
    """Commands that messages and explanations in the source name: module, command, options."""
    found = []
    for path in sorted((ROOT / "src" / "runnel").rglob("*.py")):
        for literal in re.findall(r'hint\s*=\s*((?:\(\s*)?(?:f?"[^"]*"\s*)+)', path.read_text()):
            found += [(path.stem, *call) for call in HINT.findall(literal)]
    return sorted(set(found))


def assert_exists(command: str, words: list[str]) -> None:
    assert command.split(maxsplit=1)[0] in cli.available(), command
    for word in words:
        if word.startswith("-"):
            assert word.partition("=")[0] in options(command), f"{command} {word}"


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
    at = 2 if words[0] == "dead-letters" else 1
    assert_exists(" ".join(words[:at]), words[at:])


def test_a_command_that_a_message_tells_to_type_exists_with_its_options() -> None:
    found = hints()
    assert {"init", "destroy", "remove"} <= {command for _, command, _ in found}
    for _, command, words in found:
        assert_exists(command, words.split())


def test_the_table_of_options_names_each_option_of_each_command_and_no_other() -> None:
    section = (ROOT / "docs" / "commands.md").read_text().partition("| command | option |")[2]
    named: dict[str, set[str]] = {}
    commands: list[str] = []
    for row in section.partition("\n\n")[0].splitlines()[2:]:
        first, cell = (part.strip() for part in row.split("|")[1:3])
        commands = re.findall(r"`([^`]+)`", first) or commands
        for command in commands:
            named.setdefault(command, set()).update(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", cell))
    letters = [f"dead-letters {word}" for word in ("list", "show", "replay", "drop")]
    for command in [*(name for name in cli.available() if name != "dead-letters"), *letters]:
        assert options(command) - {"-h", "--help"} == named.get(command, set()), command


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
