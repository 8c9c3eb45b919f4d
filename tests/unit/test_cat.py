"""`runnel cat`: each committed change once, at any moment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from contract.sinks import FilesTarget, Pipeline, history, names
from outputs import Output
from runnel.cli.main import main
from runnel.postgres.lsn import Lsn
from windows import Transaction, insert, message, relation, update


def cat(capfdbinary: pytest.CaptureFixture[bytes], path: Path) -> list[dict[str, Any]]:
    with pytest.raises(SystemExit) as ended:
        main(["cat", str(path)])
    out, err = capfdbinary.readouterr()
    assert ended.value.code == 0, err
    return [json.loads(line) for line in out.decode().splitlines()]


SETTINGS: list[dict[str, Any]] = [
    {},
    {"roll_bytes": 500},
    {"compression": "gzip"},
    {"compression": "zstd", "layout": "table"},
    {"format": "csv"},
    {"format": "csv", "compression": "zstd"},
    {"format": "csv", "layout": "table"},
    {"format": "parquet"},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_every_format_is_printed_as_json_lines(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], settings: dict[str, Any]
) -> None:
    pipeline = Pipeline(FilesTarget(tmp_path, settings), tmp_path)
    pipeline.run(history())
    pipeline.flush()
    rows = cat(capfdbinary, tmp_path / "out")

    def lsn(row: dict[str, Any]) -> int:
        value = row.get("lsn", row.get("_lsn"))
        return Lsn.parse(value) if isinstance(value, str) else int(str(value))

    seen = [(lsn(row), int(row["seq"] if "seq" in row else row["_seq"])) for row in rows]
    assert sorted(seen) == names(history())


def test_csv_gives_back_the_default_json(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    changes = [insert(1, 'q"\n,'), insert(2, None), update(3, "", old=(9,)), message("p", b"hi")]
    for form in ("jsonl", "csv"):
        Output(tmp_path / form, format=form).add(*changes)
    assert cat(capfdbinary, tmp_path / "csv") == cat(capfdbinary, tmp_path / "jsonl")


def test_numbers_that_json_does_not_have_are_text(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    floats = relation("floats", {"id": "int4", "f": "float8", "g": "float4"})
    words = ("NaN", "Infinity", "-Infinity")
    output = Output(tmp_path, format="parquet", layout="table")
    output.add(insert(0, "1.5", "-0.5", into=floats), *[insert(1, w, w, into=floats) for w in words])
    output.sink.flush()
    with pytest.raises(SystemExit):
        main(["cat", str(tmp_path)])
    text = capfdbinary.readouterr().out.decode()
    rows = [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]
    assert [(row["f"], row["g"]) for row in rows] == [(1.5, -0.5), *((w, w) for w in words)]


def test_what_is_not_committed_is_not_printed(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    output = Output(tmp_path)
    output.add(insert(1, "x"))
    with open(tmp_path / "000000000001.jsonl", "ab") as file:
        file.write(b'{"op":"half')
    (tmp_path / "000000000002.jsonl").write_text('{"op":"never"}\n')
    assert [row["key"] for row in cat(capfdbinary, tmp_path)] == [{"id": 1}]


def test_a_path_without_an_output_is_told(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["cat", str(tmp_path)])
    assert ended.value.code == 1
    assert str(tmp_path).encode() in capfdbinary.readouterr().err


@pytest.mark.parametrize("settings", [{"roll_bytes": 900}, {"format": "csv", "layout": "table"}], ids=str)
def test_follow_prints_each_change_once_while_a_writer_runs(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    output = Output(tmp_path / "out", **settings)
    process = subprocess.Popen(
        [sys.executable, "-m", "runnel", "cat", "--follow", str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    try:
        other = relation("other")
        rows = []
        for n in range(12):
            output.write(Transaction(int(output.at), (insert(n, "x" * 100), insert(n, "y", into=other))))
            rows += [json.loads(process.stdout.readline()) for _ in range(2 if n % 3 == 2 else 0)]
        deadline = time.monotonic() + 60
        while len(rows) < 24 and time.monotonic() < deadline:
            rows.append(json.loads(process.stdout.readline()))
    finally:
        process.terminate()
        process.stdout.close()
        process.wait()
    named = sorted((row.get("lsn", row.get("_lsn")), int(row.get("seq", row.get("_seq")))) for row in rows)
    assert len(set(named)) == 24
