"""`runnel dead-letters replay` on a real state: killed at every step, rejected again, from the log."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from conftest import RunnelCli
from runnel.postgres.lsn import Lsn
from runnel.progress.state import State
from runnel.sinks.api import Reject
from runnel.sinks.files.text import reject

STORED = Path(__file__).parents[2] / "fixtures" / "log-v1"
REPLAY = ("dead-letters", "replay", "copy")


def configure(cli: RunnelCli, url: str, sink: str = "", more: str = "") -> None:
    cli.config(
        f"source: {{url: '{url}', name: shop}}\n"
        f"pipelines:\n  copy: {{sink: {{type: files, path: out{sink}}}}}\n" + more
    )


def letter(lsn: int, key: int, note: str = "", old: int | None = None) -> Reject:
    change = {
        "op": "insert" if old is None else "update",
        "schema": "public",
        "table": "t",
        "lsn": str(Lsn(lsn)),
        "seq": 0,
        "xid": 7,
        "time": "2026-11-18T00:00:00Z",
        "key": {"id": key},
        "after": {"id": key, "note": note},
    }
    text = json.dumps(change, separators=(",", ":"))
    old_key = None if old is None else f'{{"id":{old}}}'
    return Reject(Lsn(lsn), 0, "public.t", f'{{"id":{key}}}', text, "too long", old_key)


def delivered(cli: RunnelCli) -> list[int]:
    """LSNs, in the order of the files."""
    lines = "".join(file.read_text() for file in sorted((cli.directory / "out").glob("*.jsonl")))
    return [int(Lsn.parse(json.loads(line)["lsn"])) for line in lines.splitlines()]


@pytest.mark.parametrize(
    "point", ["sink.staged", "letters.written", "sink.written", "letters.delivered", "letters.forgotten"]
)
@pytest.mark.parametrize("slice", [1, 2])
def test_letters_are_delivered_once_and_in_order_wherever_a_replay_is_killed(
    runnel_cli: RunnelCli, state: State, url: str, point: str, slice: int
) -> None:
    configure(runnel_cli, url)
    runnel_cli.run("init")
    letters = [letter(lsn, lsn % 7) for lsn in range(1, 1500)]
    state.store_letters("copy", letters[::-1])
    env = {"RUNNEL_FAILPOINTS": f"{point}=kill@{slice}"}
    runnel_cli.run(*REPLAY, env=env, expect=-9)
    runnel_cli.run(*REPLAY, env=env, expect=(0, -9))
    runnel_cli.run(*REPLAY)
    assert delivered(runnel_cli) == list(range(1, 1500))
    assert state.letters("copy") == []
    assert state.parked("copy") == []
    record = json.loads((runnel_cli.directory / "out/_runnel/position.json").read_text())
    assert record["redelivered"] == []
    assert "0 letters delivered" in runnel_cli.run(*REPLAY).stderr


def test_what_is_rejected_again_stays_with_what_is_behind_it_and_tells_why(
    runnel_cli: RunnelCli, state: State, url: str
) -> None:
    configure(runnel_cli, url, ", max_record_bytes: 1000")
    runnel_cli.run("init")
    long = "x" * 2000
    state.store_letters(
        "copy",
        [
            letter(1, 1),
            letter(2, 1, long),
            letter(3, 5, old=1),
            letter(4, 5),
            letter(5, 9),
            letter(6, 8, long),
        ],
    )
    failed = runnel_cli.run(*REPLAY, expect=1)
    assert "2 letters delivered" in failed.stderr
    assert '4 letters are left: public.t key {"id":1} at 0/2 cannot be delivered: ' in failed.stderr
    assert "more than 1000 allowed" in failed.stderr
    assert delivered(runnel_cli) == [1, 5]
    assert [key for _, key in state.parked("copy")] == ['{"id":1}', '{"id":5}', '{"id":8}']
    assert "more than 1000" in next(x.reason for x in state.letters("copy") if x.lsn == 2)
    configure(runnel_cli, url)
    runnel_cli.run(*REPLAY, "--table", "public.t", "--key", '{"id":5}')
    assert delivered(runnel_cli) == [1, 5, 2, 3, 4]
    assert [key for _, key in state.parked("copy")] == ['{"id":8}']


def test_a_letter_that_the_pipeline_has_not_passed_waits_for_it(
    runnel_cli: RunnelCli, state: State, url: str
) -> None:
    configure(runnel_cli, url)
    runnel_cli.run("init")
    ahead = int(state.pipelines()["copy"].position.lsn)
    state.store_letters("copy", [letter(1, 1), letter(ahead, 2)])
    failed = runnel_cli.run(*REPLAY, expect=1)
    assert "1 letter is left: pipeline 'copy' has not passed them yet" in failed.stderr
    assert delivered(runnel_cli) == [1]
    state.claim_pipeline("copy")
    assert "is running already" in runnel_cli.run(*REPLAY, expect=1).stderr


def test_typed_values_come_from_the_log_and_without_it_the_setting_is_named(
    runnel_cli: RunnelCli, state: State, url: str
) -> None:
    configure(runnel_cli, url, ", format: parquet", more="log: log\n")
    runnel_cli.run("init")
    lines = (STORED / "changes.jsonl").read_bytes().splitlines()
    # a date BC fits no Parquet type
    every = [reject(line, "") for line in lines if b'"op":"insert"' in line and b" BC" not in line]
    wanted = [one for one in every if one.table == "public.users"][::9]
    state.reposition("copy", Lsn(1 << 40))
    state.store_letters("copy", wanted)
    failed = runnel_cli.run(*REPLAY, expect=1)
    assert "log.retain" in failed.stderr
    assert len(state.letters("copy")) == len(wanted)
    shutil.copytree(STORED / "log", runnel_cli.directory / "log", dirs_exist_ok=True)
    runnel_cli.run(*REPLAY)
    assert state.letters("copy") == []
    found = [
        (lsn, seq)
        for file in sorted((runnel_cli.directory / "out").rglob("*.parquet"))
        for lsn, seq in zip(
            *(pq.read_table(file).column(name).to_pylist() for name in ("_lsn", "_seq")), strict=True
        )
    ]
    assert found == sorted((int(one.lsn), one.seq) for one in wanted)
