"""Logs that earlier releases wrote stay readable, to the last byte of what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runnel.changes.decode import decode
from runnel.log import open_log
from runnel.marshal.json import lines
from runnel.postgres.lsn import Lsn

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.mark.parametrize("version", ["log-v1"])
def test_a_stored_log_still_says_the_same(version: str) -> None:
    log = open_log(str(FIXTURES / version / "log"))
    usage = log.usage()
    assert usage.first is not None
    said = bytearray()
    refs = list(log.chunks(usage.first))
    for ref in refs:
        reader = log.open(ref.name)
        for window in decode(reader, Lsn(0)):
            said += bytes(lines(window).data)
        reader.close()
    assert bytes(said) == (FIXTURES / version / "changes.jsonl").read_bytes()
    assert refs[-1].end == usage.end
    assert sum(ref.changes for ref in refs) == said.count(b"\n")


def test_the_stored_log_has_chunks_of_every_kind() -> None:
    log = open_log(str(FIXTURES / "log-v1" / "log"))
    first = log.usage().first
    assert first is not None
    refs = list(log.chunks(first))
    headers = []
    for ref in refs:
        reader = log.open(ref.name)
        headers.append(reader.header)
        reader.close()
    assert any(h.parts > 1 and h.part == 1 and h.first_seq for h in headers)
    assert any(h.streamed for h in headers)
    assert any(h.schema_change for h in headers)
    assert any(h.relations and not h.streamed for h in headers)
    assert any(not h.pieces for h in headers)
    changes = (FIXTURES / "log-v1" / "changes.jsonl").read_text().splitlines()
    assert {json.loads(line)["op"] for line in changes} == {
        "insert",
        "update",
        "delete",
        "truncate",
        "message",
    }
