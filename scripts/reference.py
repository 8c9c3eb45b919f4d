"""Writes the generated pages of docs/. With --check it only tells (exit code 1) which are out of date."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from runnel.bench.page import page as benchmarks
from runnel.config.reference import page, schema_text

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {
    "benchmarks.md": lambda: benchmarks(json.loads((DOCS / "benchmarks.json").read_text())),
    "configuration.md": page,
    "runnel.schema.json": schema_text,
}


def main() -> int:
    stale = []
    for name, make in PAGES.items():
        path, content = DOCS / name, make()
        if path.exists() and path.read_text() == content:
            continue
        stale.append(name)
        if "--check" not in sys.argv:
            path.write_text(content)
    for name in stale:
        print(f"docs/{name}", "is out of date: run `make generate`" if "--check" in sys.argv else "written")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
