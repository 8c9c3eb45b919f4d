"""Decoding and the default JSON against a slow way that shares no code with them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changefeed import (
    UNCHANGED,
    Change,
    Encoded,
    MemoryChunk,
    Row,
    Transaction,
    Value,
    encode,
    expected,
    part_of,
    random_value,
    relation,
)
from runnel.changes.block import Op
from runnel.changes.decode import decode
from runnel.changes.relation import Relation
from runnel.errors import RunnelError
from runnel.log import LogSettings, open_log
from runnel.log.api import Filled
from runnel.marshal.json import changes, lines, lines_by_table, member, single
from runnel.postgres.lsn import Lsn

TIME = 1_763_448_180_123_456
TYPES = (23, 20, 16, 25, 1043, 1700, 701, 114, 3802, 1007, 1009, 1000, 1020, 199, 1231, 17, 1184)
OIDS = (100, 2**31 - 2, 2**32 - 60)
"""Where tables' oids begin: they are unsigned, and a server hands out all of them in turn."""
USERS = relation(100, "users", [("id", 23), ("name", 25), ("bio", 25)])


def number(value: int) -> Value:
    return Value(str(value), str(value))


def text(value: str) -> Value:
    return Value(value, json.dumps(value, ensure_ascii=False))


def delivered(chunk: MemoryChunk, after: int = 0, **options: Any) -> list[str]:
    out: list[str] = []
    for window in decode(chunk, Lsn(after), **options):
        got = lines(window)
        data = bytes(got.data).decode()
        assert len(got) == window.changes
        assert [data.encode()[a:b] for a, b in zip(got.offsets, got.offsets[1:], strict=False)] == [
            line.encode() + b"\n" for line in data.split("\n")[:-1]
        ]
        assert sorted(np.concatenate([b.order for b in window.blocks]).tolist()) == list(
            range(window.changes)
        )
        out += data.split("\n")[:-1]
    return out


# -- random streams ----------------------------------------------------------------------------------


def random_relation(oid: int, rng: random.Random) -> Relation:
    width = rng.randint(1, 6)
    columns = [("id", 23)] + [(f'c{k} "ü"', rng.choice(TYPES)) for k in range(width)]
    identity = rng.choice("ddf")
    key: tuple[int, ...] = rng.choice(((0,), (0,), ())) if identity == "f" else (0,)
    return relation(oid, f"t {oid}", columns, key, identity)


def random_row(of: Relation, rng: random.Random, unchanged: float) -> Row:
    row: list[Any] = [number(rng.randint(1, 10**6))]
    for column in of.columns[1:]:
        dice = rng.random()
        if dice < unchanged:
            row.append(UNCHANGED)
        elif dice < unchanged + 0.2:
            row.append(None)
        else:
            row.append(random_value(column.type, rng))
    return row


def random_change(relations: list[Relation], rng: random.Random, streamed: bool) -> Change:
    place = rng.randrange(len(relations))
    of = relations[place]
    dice = rng.random()
    full = of.identity == "f"
    if dice < 0.05:
        relations[place] = random_relation(of.oid, rng)
        return Change("R", relations[place])
    if dice < 0.1:
        return Change("T", relations=rng.choices(relations, k=rng.randint(1, 4)))
    if dice < 0.15:
        content = rng.choice((b"hello", b'"\n\x01', b"\xff\xfe"))
        return Change("M", prefix=rng.choice(("app", "runnel", 'p"')), content=content)
    if dice < 0.5:
        return Change("I", of, new=random_row(of, rng, 0))
    old = list(random_row(of, rng, 0))
    if not full:
        old = [v if of.columns[k].identity else None for k, v in enumerate(old)]
    if dice < 0.6:
        return Change("D", of, old=old, full=full)
    if not full and rng.random() < 0.7:
        return Change("U", of, new=random_row(of, rng, 0.2))
    return Change("U", of, old=old, full=full, new=random_row(of, rng, 0.3))


def random_stream(
    rng: random.Random, streamed: bool = False
) -> tuple[list[Transaction], list[Relation], Encoded]:
    first_oid = rng.choice(OIDS)
    tables = range(first_oid, first_oid + rng.choice((1, 2, 3, 4, 60)))
    relations = [random_relation(oid, rng) for oid in rng.sample(tables, len(tables))]
    first = list(relations)
    out: list[Transaction] = []
    lsn = rng.choice((5000, 0xFFFFFF00, 0x12_0000_0010))
    for _ in range(1 if streamed else rng.randint(1, 8)):
        lsn += rng.choice((16, 1 << 12, 1 << 28))
        one = Transaction(lsn, rng.choice((3, 742, 4_294_967_290)), TIME + rng.randint(0, 10**9))
        one.changes = [random_change(relations, rng, streamed) for _ in range(rng.randint(0, 12))]
        out.append(one)
        if not streamed and rng.random() < 0.2:
            lsn += 16
            message = Change("M", prefix=rng.choice(("lone", "runnel")), content=b"x")
            out.append(Transaction(lsn, 0, TIME, [message], lone=True))
    return out, first, encode(out, streamed=streamed)


SEEDS = st.integers(0, 1 << 32)


@settings(max_examples=200, deadline=None)
@given(seed=SEEDS, pad=st.sampled_from((1 << 16, 64)), slack=st.sampled_from((0, 1 << 16)))
def test_any_stream_becomes_exactly_its_lines_whatever_the_piece_borders(
    seed: int, pad: int, slack: int
) -> None:
    rng = random.Random(seed)
    transactions, relations, made = random_stream(rng)
    borders = rng.sample(range(len(made.frames)), rng.randint(0, min(6, len(made.frames))))
    chunk = MemoryChunk(made.frames, relations, made.changed, borders, pad=pad, slack=slack)
    assert delivered(chunk) == expected(transactions)
    after = rng.choice(transactions).lsn + rng.choice((0, 1))
    assert delivered(chunk, after) == expected(transactions, after=after)
    assert delivered(chunk, messages=False) == expected(transactions, messages=False)


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS)
def test_a_streamed_transaction_reports_its_top_xid_in_every_part(seed: int) -> None:
    rng = random.Random(seed)
    transactions, relations, made = random_stream(rng, streamed=True)
    [one] = transactions
    if not made.frames:
        return
    chunk = MemoryChunk(
        made.frames, relations, made.changed, [3, 4], transaction=part_of(one), streamed=True
    )
    assert delivered(chunk) == expected(transactions)
    assert delivered(chunk, one.lsn + 1) == []


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS)
def test_tables_apart_single_lines_and_columns_say_the_same_as_the_lines(seed: int) -> None:
    rng = random.Random(seed)
    _, relations, made = random_stream(rng)
    for window in decode(MemoryChunk(made.frames, relations, made.changed), Lsn(0)):
        whole = bytes(lines(window).data).decode().split("\n")[:-1]
        apart = {
            label: bytes(part.data).decode().split("\n")[:-1]
            for label, part in lines_by_table(window).items()
        }
        assert sorted(line for part in apart.values() for line in part) == sorted(whole)
        for label, part in apart.items():
            mine = [line for line in whole if _label(line) == label]
            assert part == mine
        for index, block in enumerate(window.blocks):
            for row, place in enumerate(block.order.tolist()):
                assert single(window, index, row) == whole[place]
        table = changes(window)
        assert len(table) == window.changes
        for line, found in zip(map(json.loads, whole), table.to_pylist(), strict=True):
            for name in ("op", "lsn", "seq"):
                assert found[name] == line[name]
            assert found["xid"] == line.get("xid")
            assert found["time"].isoformat(timespec="microseconds") == line["time"].replace("Z", "+00:00")
            if line["op"] == "message":
                assert (found["schema"], found["table"]) == (None, line["prefix"])
                continue
            assert (found["schema"], found["table"]) == (line["schema"], line["table"])
            for name in ("key", "before", "after", "unchanged"):
                assert found[name] == (_dumps(line[name]) if name in line else None) or json.loads(
                    found[name]
                ) == line.get(name)


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _label(line: str) -> str:
    found = json.loads(line)
    return f"{found['schema']}.{found['table']}" if "table" in found else ""


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS)
def test_what_the_log_gives_back_from_disk_is_decoded_the_same(seed: int) -> None:
    rng = random.Random(seed)
    streamed = rng.random() < 0.3
    transactions, relations, made = random_stream(rng, streamed)
    header = MemoryChunk(made.frames, relations, made.changed).header
    if streamed:
        header = replace(header, streamed=True, transaction=part_of(transactions[0]))
    with TemporaryDirectory() as place:
        log = open_log(place, LogSettings(place, piece_bytes=rng.choice((1, 500, 1 << 20))))
        writer = log.writer()
        if made.frames:
            writer.write(b"".join(made.frames), np.array([len(frame) for frame in made.frames], np.int64))
        log.append([Filled(writer, header)])
        [ref] = log.chunks(header.start)
        reader = log.open(ref.name)
        found = [
            line
            for window in decode(reader, Lsn(0))
            for line in bytes(lines(window).data).decode().split("\n")[:-1]
        ]
        reader.close()
    assert found == expected(transactions)


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS)
def test_windows_too_large_for_32_bit_offsets_give_the_same_lines(seed: int) -> None:
    rng = random.Random(seed)
    transactions, relations, made = random_stream(rng)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("runnel.marshal.space._LARGE", 1)
        assert delivered(MemoryChunk(made.frames, relations, made.changed)) == expected(transactions)


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS)
def test_a_few_rows_of_each_of_many_tables_are_told_apart(seed: int) -> None:
    rng = random.Random(seed)
    models = [random_relation(0, rng) for _ in range(3)]
    oids = rng.sample(range(2**32), 200)
    relations = [replace(rng.choice(models), oid=oid, name=f"t {oid}") for oid in oids]
    first = list(relations)
    stream = [
        Transaction(5000 + 16 * at, 700, TIME, [random_change(relations, rng, False) for _ in range(10)])
        for at in range(40)
    ]
    made = encode(stream)
    borders = rng.sample(range(len(made.frames)), rng.randint(0, 2))
    assert delivered(MemoryChunk(made.frames, first, made.changed, borders)) == expected(stream)


def test_what_is_worked_on_at_once_does_not_become_more_with_the_tables() -> None:
    tables = [replace(USERS, oid=oid, name=f"users_{oid}") for oid in range(1000)]
    rows = [Change("I", table, new=[number(k), text("a"), None]) for k, table in enumerate(tables)]
    rows += [Change("D", table, old=[number(1), None, None]) for table in tables]
    [window] = decode(chunk_of(one_transaction(*rows), tables), Lsn(0))
    assert [(sheet.op, len(sheet)) for sheet in window.sheets] == [(Op.INSERT, 1000), (Op.DELETE, 1000)]
    assert [block.relation for block in window.blocks] == tables + tables


# -- one thing at a time -----------------------------------------------------------------------------


def chunk_of(
    transactions: Sequence[Transaction], relations: Sequence[Relation], **options: Any
) -> MemoryChunk:
    made = encode(transactions)
    return MemoryChunk(made.frames, relations, made.changed, **options)


def one_transaction(*made: Change) -> list[Transaction]:
    return [Transaction(0x16B3748, 742, TIME, list(made))]


def test_a_line_is_byte_for_byte_what_the_contract_says() -> None:
    update = Change("U", USERS, old=[number(1), None, None], new=[number(2), text("a"), UNCHANGED])
    [line] = delivered(chunk_of(one_transaction(update), [USERS]))
    assert line == (
        '{"op":"update","schema":"public","table":"users","lsn":"0/16B3748","seq":0,"xid":742,'
        '"time":"2025-11-18T06:43:00.123456Z","key":{"id":2},"before":{"id":1},'
        '"after":{"id":2,"name":"a"},"unchanged":["bio"]}'
    )


def test_a_value_left_out_of_the_new_row_is_taken_from_a_full_old_one() -> None:
    full = relation(7, "f", [("id", 23), ("bio", 25)], (0,), "f")
    update = Change("U", full, old=[number(1), text("long")], full=True, new=[number(2), UNCHANGED])
    [line] = map(json.loads, delivered(chunk_of(one_transaction(update), [full])))
    assert line["before"] == {"id": 1, "bio": "long"}
    assert line["after"] == {"id": 2, "bio": "long"}
    assert "unchanged" not in line


def test_a_delete_that_knows_only_the_identity_index_gives_that_as_key() -> None:
    columns = relation(8, "i", [("id", 23), ("email", 25)], (1,), "i").columns
    by_index = Relation(8, "public", "i", "i", columns, (0,))
    delete = Change("D", by_index, old=[None, text("a@b")])
    insert = Change("I", by_index, new=[number(1), text("a@b")])
    first, second = map(json.loads, delivered(chunk_of(one_transaction(insert, delete), [by_index])))
    assert first["key"] == {"id": 1}
    assert second["key"] == {"email": "a@b"}


def test_the_rows_of_a_table_with_two_versions_are_read_by_their_own() -> None:
    wider = relation(100, "users", [("id", 23), ("name", 25), ("bio", 25), ("age", 23)])
    before = Change("I", USERS, new=[number(1), text("a"), None])
    behind = Change("I", wider, new=[number(2), text("b"), None, number(3)])
    stream = one_transaction(before, Change("R", wider), behind)
    first, second = map(json.loads, delivered(chunk_of(stream, [USERS])))
    assert first["after"] == {"id": 1, "name": "a", "bio": None}
    assert second["after"] == {"id": 2, "name": "b", "bio": None, "age": 3}


def test_each_table_of_a_truncate_is_a_change_of_its_own() -> None:
    other = relation(101, "other", [("id", 23)])
    stream = one_transaction(
        Change("T", relations=[USERS, other, USERS]), Change("I", USERS, new=[number(1), None, None])
    )
    found = [json.loads(line) for line in delivered(chunk_of(stream, [USERS, other]))]
    assert [(line["op"], line["table"], line["seq"]) for line in found] == [
        ("truncate", "users", 0),
        ("truncate", "other", 1),
        ("truncate", "users", 2),
        ("insert", "users", 3),
    ]


def test_seqs_of_a_huge_transaction_and_of_the_next_one_stand_in_one_window() -> None:
    huge, small = (
        Transaction(lsn, 5, TIME, [Change("I", USERS, new=[number(k), None, None]) for k in range(3)])
        for lsn in (1000, 2000)
    )
    frames = encode([huge]).frames[2:] + encode([small]).frames
    part = MemoryChunk(frames, [USERS], transaction=part_of(huge), part=1, parts=2, first_seq=10**9)
    found = [json.loads(line)["seq"] for line in delivered(part)]
    assert found == [10**9, 10**9 + 1, 10**9 + 2, 0, 1, 2]


def test_a_tables_width_does_not_matter_to_the_room_for_texts() -> None:
    wide = relation(9, "wide", [(f"column_{k}", 25) for k in range(1600)])
    row: Row = [text(f"v{k}") if k % 3 else None for k in range(1600)]
    stream = one_transaction(Change("I", wide, new=row))
    assert delivered(chunk_of(stream, [wide])) == expected(stream)


def test_single_byte_characters_that_are_no_utf8_stay_readable() -> None:
    odd = relation(10, "odd", [("id", 23), ("c", 18)])
    made = encode(one_transaction(Change("I", odd, new=[number(1), text("#")])))
    frames = [frame.replace(b"#", b"\xff") for frame in made.frames]
    [line] = delivered(MemoryChunk(frames, [odd]))
    assert json.loads(line)["after"] == {"id": 1, "c": "\\377"}


def test_members_and_columns_of_a_block_are_at_hand_for_sinks() -> None:
    stream = one_transaction(
        Change("U", USERS, new=[number(1), None, UNCHANGED]),
        Change("U", USERS, new=[number(2), text('"'), text("")]),
    )
    [window] = decode(chunk_of(stream, [USERS]), Lsn(0))
    [block] = window.blocks
    assert block.op is Op.UPDATE
    assert block.new is not None
    assert block.new.column(0).to_pylist() == [b"1", b"2"]
    assert block.new.column(1).to_pylist() == [None, b'"']
    assert block.new.column(2).to_pylist() == [None, b""]
    assert block.new.unchanged(2).tolist() == [True, False]
    assert window.lsn(block).tolist() == [0x16B3748] * 2
    assert window.xid(block).tolist() == [742] * 2
    assert window.time(block).tolist() == [TIME] * 2
    assert member(window, block, "key").to_pylist() == ['{"id":1}', '{"id":2}']
    assert member(window, block, "before").to_pylist() == [None, None]
    assert member(window, block, "unchanged").to_pylist() == ['["bio"]', None]


# -- damage ------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(seed=SEEDS)
def test_a_damaged_frame_is_an_error_that_names_chunk_and_lsn_or_still_decodes(seed: int) -> None:
    rng = random.Random(seed)
    _, relations, made = random_stream(rng)
    frames = [bytearray(frame) for frame in made.frames]
    for _ in range(rng.randint(1, 3)):
        frame = rng.choice(frames)
        frame[rng.randrange(25, len(frame))] = rng.randrange(256)
    if rng.random() < 0.3:
        frame = rng.choice(frames)
        del frame[rng.randrange(26, len(frame) + 1) :]
    chunk = MemoryChunk([bytes(frame) for frame in frames], relations, made.changed, slack=0)
    said: RunnelError | None = None
    try:
        for window in decode(chunk, Lsn(0)):
            assert sum(map(len, window.blocks)) == window.changes
    except RunnelError as error:
        said = error
    if said is not None:
        assert "chunk 0000000000000010.00000: frame " in str(said)
        assert "LSN " in str(said)
        assert said.hint


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda frames: [frames[0], frames[2][:25] + b"Q", *frames[3:]], "no known message"),
        (lambda frames: frames[1:-1], "outside a transaction"),
        (lambda frames: frames[:-1], "inside a transaction"),
        (lambda frames: [frames[0], *frames], "out of place"),
        (lambda frames: [*frames[:2], frames[2] + b"!", frames[3]], "does not end with its frame"),
        (lambda frames: [*frames[:2], frames[2].replace(b"\0\0\0\x64", b"\0\0\0\x65"), frames[3]], "101"),
        (
            lambda frames: [*frames[:2], frames[2].replace(b"N\0\3", b"N\0\2"), frames[3]],
            "number of columns",
        ),
        (
            lambda frames: [*frames[:2], frames[2].replace(b"t\0\0\0\1", b"b\0\0\0\1"), frames[3]],
            "known kind",
        ),
        (lambda frames: [*frames[:2], frames[2].replace(b"t\0\0\0\1", b"t\1\0\0\1"), frames[3]], "longer"),
    ],
)
def test_what_a_server_cannot_have_sent_is_refused_by_name(damage: Any, what: str) -> None:
    made = encode(one_transaction(Change("I", USERS, new=[number(1), text("xy"), None])))
    with pytest.raises(RunnelError, match=what):
        delivered(MemoryChunk(damage(made.frames), [USERS]))
