"""Every named step at which Runnel can be killed is one at which a test kills it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def texts(folder: str) -> dict[Path, str]:
    return {path: path.read_text() for path in (ROOT / folder).rglob("*.py")}


def test_every_failpoint_is_named_by_a_test_and_every_name_in_a_test_exists() -> None:
    points = {
        name for text in texts("src").values() for name in re.findall(r"\bfailpoint\(\"([^\"]+)\"", text)
    }
    assert points
    tests = texts("tests")
    killing = "\n".join(text for text in tests.values() if "RUNNEL_FAILPOINTS" in text)
    assert {name for name in points if f'"{name}"' not in killing and f"{name}=" not in killing} == set()
    named = {
        name
        for text in tests.values()
        for name in re.findall(r"\b([a-z]+(?:\.[a-z]+)+)=(?:kill|raise)", text)
    }
    assert named <= points
