"""Lower layers never import higher ones."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"

LAYERS = (
    {"runnel", "errors", "events", "failpoints", "failures", "redaction", "settings"},
    {"postgres"},
    {"changes", "log"},
    {"progress"},
    {"marshal", "modify"},
    {"sinks"},
    {"config"},
    {"capture", "spark"},
    {"overview", "redelivery", "supervisor", "pyspark_runnel"},
    {"demo"},
    {"bench"},
    {"cli"},
    {"__main__"},
)
TOGETHER = ({"changes", "log"}, LAYERS[0])
"""Layers whose members may know each other: a chunk carries relations, decoding begins at a chunk."""
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
FILES = sorted(SOURCE.rglob("*.py"))


def package(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    if parts[0] != "runnel":
        return parts[0]
    return "runnel" if parts[1] == "__init__" else parts[1]


def imported(path: Path) -> set[str]:
    """Packages of ours that a file imports, anywhere in it, also only for types."""
    found: set[str] = set()
    here = path.relative_to(SOURCE).with_suffix("").parts
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(here[: len(here) - node.level]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            names = [f"{module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "pyspark_runnel":
                found.add(parts[0])
            elif parts[0] == "runnel":
                found.add(parts[1] if len(parts) > 1 and parts[1] in LEVEL else "runnel")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_imports_only_its_own_layer_and_lower_ones(path: Path) -> None:
    own = package(path)
    assert own in LEVEL, f"say in LAYERS where {own} belongs"
    for name in imported(path) - {own}:
        if own == "runnel" or name == "runnel":
            continue
        together = any({own, name} <= group for group in TOGETHER)
        assert LEVEL[name] < LEVEL[own] or together, (
            f"{path.relative_to(SOURCE)} ({own}) imports {name}, which is above or beside it"
        )


@pytest.mark.parametrize(
    "name", ["postgres", "log", "changes", "modify", "marshal", "progress", "config", "capture"]
)
def test_only_the_layers_that_join_them_know_spark(name: str) -> None:
    for path in (SOURCE / "runnel" / name).rglob("*.py"):
        assert "pyspark" not in path.read_text().replace("pyspark_runnel", ""), path
