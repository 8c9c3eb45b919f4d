"""Each program of docs/spark.md can be run alone."""

from __future__ import annotations

import builtins
import dis

from pages import blocks


def test_each_program_of_the_page_brings_every_name_it_uses_and_starts_at_the_beginning() -> None:
    programs = [text for _, text in blocks("python", "docs/spark.md")]
    assert len(programs) == 2
    for text in programs:
        known = set(dir(builtins))
        for step in dis.get_instructions(compile(text, "docs/spark.md", "exec")):
            if step.opname == "STORE_NAME":
                known.add(step.argval)
            elif step.opname == "LOAD_NAME":
                assert step.argval in known
        assert '.option("start", "earliest")' in text
