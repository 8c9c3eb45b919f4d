"""README.md and docs/ as tests read them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.S | re.M)


def blocks(language: str, page: str = "") -> list[tuple[str, str]]:
    """The page's name and the text of each fenced block; of every page, or of one."""
    found = []
    for path in PAGES:
        name = str(path.relative_to(ROOT))
        for kind, text in BLOCK.findall(path.read_text()):
            if kind == language and page in {"", name}:
                found.append((name, text))
    return found


def calls(text: str) -> list[str]:
    """Every line of a shell block that calls runnel, without its comment."""
    lines = (line.partition(" #")[0].partition(" | ")[0].strip() for line in text.splitlines())
    found = (re.search(r"(?:^|\| *)(runnel .*)", line) for line in lines)
    return [call[1] for call in found if call]
