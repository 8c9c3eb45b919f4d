"""What every sink must hold (sinks/api.py), over every registered sink and one for each plan."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from contract.sinks import (
    LINEAGE,
    ORIGIN,
    TARGETS,
    FilesTarget,
    Name,
    Pipeline,
    Target,
    batch_of,
    history,
    names,
)
from runnel import failpoints
from runnel.errors import Refused, RunnelError, Transient
from runnel.log.api import Lineage
from runnel.marshal.json import lines
from runnel.postgres.lsn import Lsn
from runnel.progress.position import Position
from runnel.sinks.api import Attempt, Batch, LetterWriter, Plan, Receipt, Reject
from runnel.sinks.registry import SINKS
from windows import Transaction, insert, relation, window

HISTORY = history()
TARDY = relation("tardy")
LATE = Transaction(0x1010, (insert(1, "a", into=TARDY), insert(2, "b", into=TARDY)))


@pytest.fixture(params=TARGETS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def target(kind: str, tmp_path: Path) -> Target:
    return TARGETS[kind](tmp_path)


def once(seen: list[Name], exactly: bool) -> list[Name]:
    """What a consumer is left with: as it is, or with repeats dropped by (lsn, seq)."""
    if exactly:
        return seen
    return list(dict.fromkeys(seen))


def check(target: Target, sink_holds_position: bool, plan: Plan, expected: list[Name]) -> None:
    seen = once(target.seen(), sink_holds_position)
    if plan is Plan.KEYED:  # in order for each key, not over all of them
        assert sorted(seen) == expected
        keys = {name: _key(name) for name in seen}
        for key in set(keys.values()):
            some = [name for name in seen if keys[name] == key]
            assert some == sorted(some), key
    else:
        assert seen == expected


def _key(name: Name) -> tuple[str, object]:
    changes = {(t.lsn, seq): c for t in HISTORY for seq, c in enumerate(t.changes)}
    change = changes[name]
    assert change.relation is not None
    return change.relation.name, (change.new or change.old or (None,))[0]


def test_every_registered_sink_is_in_the_suite() -> None:
    assert {name.partition("-")[0] for name in TARGETS} >= set(SINKS)


def test_each_change_arrives_once_and_in_order(target: Target, tmp_path: Path) -> None:
    pipeline = Pipeline(target, tmp_path)
    pipeline.run(HISTORY)
    pipeline.flush()
    pipeline.close()
    assert pipeline.progress.load().lsn == HISTORY[-1].end
    check(target, True, pipeline.sink.capabilities.plan, names(HISTORY))


def test_a_later_start_goes_on_where_the_authority_stands(target: Target, tmp_path: Path) -> None:
    first = Pipeline(target, tmp_path)
    first.run(HISTORY[:5])
    first.flush()
    first.close()
    second = Pipeline(target, tmp_path)
    assert second.position.lsn == HISTORY[4].end
    second.run(HISTORY, size=3)  # other borders than before
    second.flush()
    second.close()
    check(target, True, second.sink.capabilities.plan, names(HISTORY))


def test_a_commit_that_is_already_there_is_skipped(target: Target, tmp_path: Path) -> None:
    pipeline = Pipeline(target, tmp_path)
    batch = batch_of(ORIGIN, HISTORY[:3])
    pipeline.commit(batch, pipeline.tasks(batch, HISTORY[:3]))
    part = batch_of(ORIGIN, HISTORY[:2])
    exactly = pipeline.sink.capabilities.plan is not Plan.KEYED
    pipeline.commit(part, pipeline.tasks(part, HISTORY[:2]))
    pipeline.commit(batch, pipeline.tasks(batch, HISTORY[:3]))
    pipeline.flush()
    assert pipeline.progress.load().lsn == batch.end
    check(target, exactly, pipeline.sink.capabilities.plan, names(HISTORY[:3]))
    pipeline.close()


@pytest.mark.parametrize("start", [ORIGIN - 1, ORIGIN + 1])
def test_a_batch_that_begins_elsewhere_is_refused(target: Target, tmp_path: Path, start: int) -> None:
    pipeline = Pipeline(target, tmp_path)
    batch = Batch(Lsn(start), Lsn(HISTORY[2].end), 1, 2)
    with pytest.raises(Refused, match="0/1000"):
        pipeline.commit(batch, pipeline.tasks(batch, HISTORY[:3]))
    pipeline.close()


def test_an_empty_batch_moves_the_position(target: Target, tmp_path: Path) -> None:
    pipeline = Pipeline(target, tmp_path)
    assert pipeline.sink.commit(Batch(ORIGIN, Lsn(0x9000), 0, 0), []) == 0x9000
    pipeline.close()
    if pipeline.sink.capabilities.holds_position:
        again = Pipeline(target, tmp_path)
        assert again.position.lsn == 0x9000
        again.close()


def test_an_attempt_without_a_receipt_is_never_seen(target: Target, tmp_path: Path) -> None:
    pipeline = Pipeline(target, tmp_path)
    if pipeline.sink.capabilities.plan is not Plan.STAGED:
        pytest.skip("only staged attempts can be finished and not named")
    batch = batch_of(ORIGIN, HISTORY[:4])
    pipeline.tasks(batch, HISTORY[:4])
    pipeline.commit(batch, pipeline.tasks(batch, HISTORY[:4]))
    pipeline.run(HISTORY[:6])
    pipeline.flush()
    check(target, True, Plan.STAGED, names(HISTORY[:6]))
    pipeline.close()


def test_an_aborted_attempt_leaves_nothing(target: Target, tmp_path: Path) -> None:
    pipeline = Pipeline(target, tmp_path)
    batch = batch_of(ORIGIN, HISTORY[:1])
    writer = target.writer(pipeline.sink.task(), Attempt(batch.start, batch.end, 0, "gone"))
    if pipeline.sink.capabilities.plan is not Plan.KEYED:
        writer.write(window(HISTORY[0]))
    writer.abort()
    pipeline.run(HISTORY[:4])
    pipeline.flush()
    pipeline.close()
    check(target, True, pipeline.sink.capabilities.plan, names(HISTORY[:4]))


def test_a_batch_with_a_reject_leaves_nothing_and_all_but_it_comes_when_it_runs_again(
    kind: str, tmp_path: Path
) -> None:
    longest = 2000
    target = TARGETS[kind](tmp_path)
    if isinstance(target, FilesTarget) and target.settings.get("format", "jsonl") == "jsonl":
        target.settings |= {"max_record_bytes": longest}
    pipeline = Pipeline(target, tmp_path)
    if pipeline.sink.capabilities.max_record_bytes is None:
        pytest.skip("it takes everything")
    long = Transaction(HISTORY[2].end, (insert(7, "x" * longest), insert(8, "short")))
    attempt = Attempt(ORIGIN, Lsn(long.end), 0, "rejected")
    writer = target.writer(pipeline.sink.task(), attempt)
    rejects = [reject for some in [*HISTORY[:3], long] for reject in writer.write(window(some))]
    writer.abort()
    assert [(reject.lsn, reject.seq) for reject in rejects] == [(long.lsn, 0)]
    assert rejects[0].change
    if pipeline.sink.capabilities.plan is not Plan.KEYED:
        assert _seen(target) == []
    short = Transaction(long.lsn, long.changes[1:], first_seq=1)
    pipeline.run([*HISTORY[:3], short])
    pipeline.flush()
    pipeline.close()
    exactly = pipeline.sink.capabilities.plan is not Plan.KEYED
    assert sorted(once(target.seen(), exactly)) == names([*HISTORY[:3], short])


def _seen(target: Target) -> list[Name]:
    try:
        return target.seen()
    except FileNotFoundError:
        return []


def _fail_at(monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    monkeypatch.setattr(failpoints, "_points", {point: ("raise", 1)})
    monkeypatch.setattr(failpoints, "_passed", {})


@pytest.mark.parametrize("point", ["sink.written", "sink.committed"])
def test_a_commit_that_failed_is_repeated_without_harm(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    pipeline = Pipeline(target, tmp_path)
    _fail_at(monkeypatch, point)
    some = HISTORY[:4]
    batch = batch_of(ORIGIN, some)
    try:
        receipts = pipeline.tasks(batch, some)
        pipeline.commit(batch, receipts)
        pipeline.flush()
    except Transient:
        receipts = pipeline.tasks(batch, some)
        pipeline.commit(batch, receipts)
        pipeline.flush()
    assert failpoints._passed, f"{point} was never passed"
    exactly = pipeline.sink.capabilities.plan is not Plan.KEYED
    check(target, exactly, pipeline.sink.capabilities.plan, names(some))
    pipeline.run(HISTORY)
    pipeline.flush()
    pipeline.close()
    check(target, exactly, pipeline.sink.capabilities.plan, names(HISTORY))


def test_the_same_receipts_can_be_committed_again_after_a_failure(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(target, tmp_path)
    if pipeline.sink.capabilities.plan is not Plan.STAGED:
        pytest.skip("the other plans write in their tasks")
    batch = batch_of(ORIGIN, HISTORY)
    receipts = pipeline.tasks(batch, HISTORY)
    _fail_at(monkeypatch, "sink.written")
    try:
        pipeline.commit(batch, receipts)
        pipeline.flush()
    except Transient:
        pipeline.commit(batch, receipts)
        pipeline.flush()
    pipeline.close()
    check(target, True, Plan.STAGED, names(HISTORY))


def test_a_second_owner_takes_over_and_the_first_is_refused(target: Target, tmp_path: Path) -> None:
    first = Pipeline(target, tmp_path)
    first.run(HISTORY[:4])
    second = Pipeline(target, tmp_path)
    second.run(HISTORY[:8])
    second.flush()
    batch = batch_of(Lsn(HISTORY[7].end), HISTORY[8:10])
    with pytest.raises(Refused):
        first.commit(batch, first.tasks(batch, HISTORY[8:10]))
    second.run(HISTORY)
    second.flush()
    plan = second.sink.capabilities.plan
    check(target, second.sink.capabilities.holds_position, plan, names(HISTORY))
    first.close()
    second.close()


def test_a_target_of_another_lineage_is_refused(target: Target, tmp_path: Path) -> None:
    first = Pipeline(target, tmp_path)
    first.run(HISTORY[:2])
    first.flush()
    first.close()
    if not first.sink.capabilities.holds_position:
        pytest.skip("the target has no record")
    for other in (replace(LINEAGE, slot="shop_other123"), Lineage("1", 1, LINEAGE.slot)):
        sink = target.sink()
        with pytest.raises(Refused):
            sink.open(Position(other, 9, ORIGIN))
        sink.close()


def test_a_target_filled_before_a_failover_or_an_upgrade_is_gone_on_with(
    target: Target, tmp_path: Path
) -> None:
    first = Pipeline(target, tmp_path)
    first.run(HISTORY[:2])
    first.flush()
    first.close()
    if not first.sink.capabilities.holds_position:
        pytest.skip("the target has no record")
    promoted, upgraded = replace(LINEAGE, timeline=3), Lineage("1", 1, LINEAGE.slot)
    for epoch, (lineage, former) in enumerate(
        [(promoted, (LINEAGE,)), (upgraded, (LINEAGE, promoted)), (upgraded, (LINEAGE, promoted))], 5
    ):
        sink = target.sink()
        opened = sink.open(Position(lineage, epoch, ORIGIN, former=former))
        assert (opened.lineage, opened.epoch, opened.lsn) == (lineage, epoch, HISTORY[1].end)
        sink.close()


def test_an_earlier_epoch_cannot_open_what_a_later_one_owns(target: Target, tmp_path: Path) -> None:
    sink = target.sink()
    sink.open(Position(LINEAGE, 5, ORIGIN))
    if not sink.capabilities.holds_position:
        sink.close()
        pytest.skip("the target has no record")
    late = target.sink()
    with pytest.raises(Refused):
        late.open(Position(LINEAGE, 4, ORIGIN))
    sink.close()
    late.close()


def test_a_replay_writes_again_from_where_it_is_told(target: Target, tmp_path: Path) -> None:
    pipeline = Pipeline(target, tmp_path)
    pipeline.run(HISTORY[:4])
    pipeline.flush()
    pipeline.sink.reposition(Lsn(HISTORY[1].end))
    pipeline.accepted = Lsn(HISTORY[1].end)
    pipeline.run(HISTORY[:4])
    pipeline.flush()
    pipeline.close()
    assert sorted(target.seen()) == sorted(names(HISTORY[:4]) + names(HISTORY[2:4]))


def test_what_lies_before_a_move_forward_is_left_out_and_what_is_there_stays(
    target: Target, tmp_path: Path
) -> None:
    pipeline = Pipeline(target, tmp_path)
    pipeline.run(HISTORY[:2])
    pipeline.flush()
    pipeline.sink.reposition(Lsn(HISTORY[3].end))
    pipeline.accepted = Lsn(HISTORY[3].end)
    pipeline.run(HISTORY[:6])
    pipeline.flush()
    pipeline.close()
    assert sorted(target.seen()) == sorted(names(HISTORY[:2]) + names(HISTORY[4:6]))


def _again(pipeline: Pipeline, some: Transaction) -> None:
    """Its changes as dead letters, once more."""
    at = pipeline.position.lsn
    named = tuple((Lsn(lsn), seq) for lsn, seq in names([some]))
    attempt = Attempt(at, at, 0, uuid.uuid4().hex, letters=named)
    writer = pipeline.target.writer(pipeline.sink.task(), attempt)
    try:
        if pipeline.sink.capabilities.default_json:
            texts = bytes(lines(window(some)).data).decode().splitlines()
            letters = [
                Reject(*name, "public.tardy", None, text, "")
                for name, text in zip(named, texts, strict=True)
            ]
            assert not cast(LetterWriter, writer).write_letters(letters)
        else:
            assert not writer.write(window(some))
        payload = dict(writer.finish())
    except BaseException:
        writer.abort()
        raise
    pipeline.sink.redeliver(named, [Receipt(0, len(named), payload)])


def test_letters_come_beside_the_stream_and_are_remembered_until_the_next_ones(
    target: Target, tmp_path: Path
) -> None:
    first = Pipeline(target, tmp_path)
    first.run(HISTORY[:6])
    first.flush()
    first.close()
    owner = Pipeline(target, tmp_path)
    stood = owner.accepted
    assert owner.sink.redelivered() == frozenset()
    _again(owner, LATE)
    assert owner.sink.flush() == stood
    owner.close()
    second = Pipeline(target, tmp_path)
    assert second.position.lsn == stood
    holds = second.sink.capabilities.holds_position
    assert second.sink.redelivered() == frozenset(names([LATE]) if holds else ())
    second.run(HISTORY[6:8])
    second.flush()
    assert second.sink.redelivered() == frozenset(names([LATE]) if holds else ())
    second.sink.redeliver((), ())
    assert second.sink.redelivered() == frozenset()
    second.run(HISTORY)
    second.flush()
    second.close()
    assert sorted(target.seen()) == sorted(names([*HISTORY, LATE]))


@pytest.mark.parametrize("point", ["sink.staged", "sink.written", "sink.committed"])
def test_letters_whose_commit_failed_are_there_and_remembered_or_neither(
    target: Target, tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Pipeline(target, tmp_path)
    first.run(HISTORY[:6])
    first.flush()
    _fail_at(monkeypatch, point)
    with pytest.raises(Transient):
        _again(first, LATE)
    monkeypatch.undo()
    first.close()
    second = Pipeline(target, tmp_path)
    if not second.sink.redelivered():
        _again(second, LATE)
    second.close()
    expected = sorted(names([*HISTORY[:6], LATE]))
    assert sorted(once(target.seen(), second.sink.capabilities.holds_position)) == expected


def test_the_task_and_the_capabilities_are_data(target: Target, tmp_path: Path) -> None:
    import json

    pipeline = Pipeline(target, tmp_path)
    assert json.loads(json.dumps(dict(pipeline.sink.task())))
    assert pipeline.sink.capabilities.guarantee
    assert isinstance(pipeline.sink.capabilities.plan, Plan)
    pipeline.close()


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("point", ["sink.staged", "sink.written", "sink.committed", "progress.before"])
def test_killed_at_a_step_each_change_is_there_once_after_the_next_start(
    kind: str, target: Target, tmp_path: Path, point: str, nth: int
) -> None:
    path = os.pathsep.join(sys.path)  # also where `runnel` is not installed
    done = subprocess.run(
        [sys.executable, "-m", "contract.sinks", kind, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path, "RUNNEL_FAILPOINTS": f"{point}=kill@{nth}"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode in (-9, 0), done.stderr
    assert done.returncode == -9 or nth == 2, f"{point} was never passed"
    pipeline = Pipeline(target, tmp_path)
    pipeline.run(HISTORY, size=5)
    pipeline.flush()
    pipeline.close()
    capabilities = pipeline.sink.capabilities
    check(target, capabilities.holds_position, capabilities.plan, names(HISTORY))


def test_errors_of_sinks_say_what_to_do(target: Target, tmp_path: Path) -> None:
    pipeline = Pipeline(target, tmp_path)
    batch = Batch(Lsn(ORIGIN + 1), Lsn(HISTORY[2].end), 1, 2)
    with pytest.raises(RunnelError) as caught:
        pipeline.commit(batch, pipeline.tasks(batch, HISTORY[:3]))
    assert caught.value.hint
    pipeline.close()
