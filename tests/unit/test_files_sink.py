"""What is the files sink's own, beside what every sink must hold."""

from __future__ import annotations

import errno
import gzip
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from contract.sinks import LINEAGE, ORIGIN, FilesTarget, Pipeline, batch_of, history, names
from outputs import Output
from runnel.errors import Refused, RunnelError, Transient
from runnel.progress.position import Position
from runnel.sinks.files import growing, stage
from runnel.sinks.files.names import folder_of, number_of
from windows import UNCHANGED, Transaction, insert, message, relation, update


def test_small_batches_grow_one_file(tmp_path: Path) -> None:
    output = Output(tmp_path)
    for n in range(5):
        output.add(insert(n, "x"))
    assert output.files() == ["000000000001.jsonl"]
    assert [row["key"]["id"] for row in output.rows("000000000001.jsonl")] == [0, 1, 2, 3, 4]
    assert output.staged() == []


def test_a_file_rolls_by_size(tmp_path: Path) -> None:
    output = Output(tmp_path, roll_bytes=4096)
    for n in range(20):
        output.add(insert(n, "x" * 400))
    sizes = [os.path.getsize(tmp_path / name) for name in output.files()]
    assert len(sizes) > 1
    assert all(4096 <= size < 6000 for size in sizes[:-1])
    assert [row["key"]["id"] for name in output.files() for row in output.rows(name)] == list(range(20))


def test_a_file_rolls_by_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = Output(tmp_path, roll_seconds=60)
    output.add(insert(1, "x"))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 59)
    output.add(insert(2, "x"))
    monkeypatch.setattr(time, "time", lambda: now + 61)
    output.add(insert(3, "x"))
    assert [len(output.rows(name)) for name in output.files()] == [2, 1]


def test_a_large_piece_becomes_a_file_without_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "SPILL", 1000)
    output = Output(tmp_path, roll_bytes=8000)
    output.add(insert(1, "small"))
    batch, receipts = output.receipt(Transaction(int(output.at), (insert(2, "x" * 3000),)))
    inode = os.stat(tmp_path / receipts[0].payload["pieces"][0]["file"]).st_ino
    output.sink.commit(batch, receipts)
    output.at = batch.end
    assert os.stat(tmp_path / "000000000002.jsonl").st_ino == inode
    output.add(insert(3, "small"))
    assert output.files() == ["000000000001.jsonl", "000000000002.jsonl"]
    assert [row["key"]["id"] for row in output.rows("000000000002.jsonl")] == [2, 3]
    assert output.staged() == []


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_tables_whose_names_hold_dots_have_folders_of_their_own(tmp_path: Path, form: str) -> None:
    output = Output(tmp_path, layout="table", format=form)
    output.add(
        insert(1, "x", into=relation("c", schema="a.b")), insert(2, "y", into=relation("b.c", schema="a"))
    )
    output.sink.flush()
    assert [name.rpartition("/")[0] for name in sorted(output.files())] == ["a%2Eb.c", "a.b%2Ec"]


def test_many_small_tables_share_one_staged_file(tmp_path: Path) -> None:
    tables = [relation(f"t{n:03d}") for n in range(300)]
    output = Output(tmp_path, layout="table")
    batch, receipts = output.receipt(
        Transaction(int(output.at), tuple(insert(1, "x", into=table) for table in tables))
    )
    assert len(output.staged()) == 1
    output.sink.commit(batch, receipts)
    assert len(output.files()) == 300
    assert output.files()[7].startswith("public.t007/")


def test_more_tables_than_a_process_may_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing, "_MOST", 5)
    tables = [relation(f"t{n:02d}") for n in range(23)]
    output = Output(tmp_path, layout="table", roll_bytes=400)
    for n in range(4):
        output.add(*(insert(n, "x", into=table) for table in tables * 2))
    for table in tables:
        found = [name for name in output.files() if name.startswith(f"public.{table.name}/")]
        assert [row["after"]["id"] for name in found for row in output.rows(name)] == [
            0,
            0,
            1,
            1,
            2,
            2,
            3,
            3,
        ]


def test_an_output_disk_that_is_full_is_told_and_nothing_half_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Output(tmp_path)
    output.add(insert(1, "x"))
    before = (tmp_path / "000000000001.jsonl").read_bytes()
    batch, receipts = output.receipt(Transaction(int(output.at), (insert(2, "x"),)))

    def half(source: int, start: int, count: int, target: int) -> None:
        os.write(target, os.pread(source, count // 2, start))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(growing, "copy_range", half)
        with pytest.raises(Transient, match=str(tmp_path)) as caught:
            output.sink.commit(batch, receipts)
    assert "space" in caught.value.hint
    assert (tmp_path / "000000000001.jsonl").read_bytes() == before
    assert output.sink.commit(batch, receipts) == batch.end
    assert [row["key"]["id"] for row in output.rows("000000000001.jsonl")] == [1, 2]


def test_an_earlier_half_written_commit_is_cut_off_at_the_next_start(tmp_path: Path) -> None:
    output = Output(tmp_path)
    output.add(insert(1, "x"))
    with open(tmp_path / "000000000001.jsonl", "ab") as file:
        file.write(b'{"op":"ins')
    (tmp_path / "000000000002.jsonl").write_text("never committed")
    (tmp_path / "_runnel/stage/e00000001").mkdir(exist_ok=True)
    (tmp_path / "_runnel/stage/e00000001/left").write_text("staged")
    (tmp_path / "notes.txt").write_text("somebody else's")
    again = Output(tmp_path)
    assert again.files() == ["000000000001.jsonl", "notes.txt"]
    assert len(again.rows("000000000001.jsonl")) == 1
    assert again.staged() == []


def test_a_start_never_touches_files_of_another_output_in_a_folder_of_ours(tmp_path: Path) -> None:
    Output(tmp_path).add(insert(1, "x"))
    inner = Output(tmp_path / "lake")
    inner.add(insert(2, "x"))
    (tmp_path / "lake/000000000007.jsonl").write_text("numbered past the record of the outer one")
    Output(tmp_path)
    assert (tmp_path / "lake/000000000007.jsonl").exists()
    assert inner.rows("000000000001.jsonl")[0]["key"]["id"] == 2


def test_a_directory_with_files_but_without_a_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / "000000000001.jsonl").write_text("{}\n")
    with pytest.raises(Refused, match=r"000000000001\.jsonl") as caught:
        Output(tmp_path)
    assert "new path" in caught.value.hint
    assert (tmp_path / "000000000001.jsonl").exists()


def test_an_open_file_that_lost_committed_bytes_is_refused(tmp_path: Path) -> None:
    Output(tmp_path).add(insert(1, "x"))
    os.truncate(tmp_path / "000000000001.jsonl", 3)
    with pytest.raises(Refused, match="it has 3"):
        Output(tmp_path)
    os.unlink(tmp_path / "000000000001.jsonl")
    with pytest.raises(Refused, match="missing"):
        Output(tmp_path)


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_pipelines_that_swap_their_paths_are_refused(tmp_path: Path, form: str) -> None:
    for name in ("a", "b"):
        Output(tmp_path / name, name, format=form)
    for path, name in (("a", "b"), ("b", "a")):
        with pytest.raises(Refused, match=f"of pipeline '{path}', not of '{name}'") as caught:
            Output(tmp_path / path, name, format=form)
        assert "a path of its own" in caught.value.hint
    Output(tmp_path / "a", "a", format=form)


def test_a_record_without_a_pipelines_name_becomes_whose_finds_it(tmp_path: Path) -> None:
    Output(tmp_path).add(insert(1, "x"))
    record = tmp_path / "_runnel/position.json"
    before = json.loads(record.read_text())
    del before["pipeline"]
    record.write_text(json.dumps(before))
    Output(tmp_path, "q")
    with pytest.raises(Refused, match="of pipeline 'q'"):
        Output(tmp_path)


def test_a_torn_record_is_refused(tmp_path: Path) -> None:
    Output(tmp_path).add(insert(1, "x"))
    (tmp_path / "_runnel/position.json").write_text('{"version": 1, "pos')
    with pytest.raises(Refused, match=r"position\.json"):
        Output(tmp_path)


def test_a_record_of_a_later_version_is_refused(tmp_path: Path) -> None:
    Output(tmp_path).add(insert(1, "x"))
    record = tmp_path / "_runnel/position.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "version": 99}))
    with pytest.raises(Refused, match="99"):
        Output(tmp_path)


@pytest.mark.parametrize(
    "changed", [{"format": "csv"}, {"layout": "table"}, {"compression": "gzip"}, {"format": "parquet"}]
)
def test_a_setting_that_must_not_change_is_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    Output(tmp_path).add(insert(1, "x"))
    with pytest.raises(Refused, match=next(iter(changed))):
        Output(tmp_path, **changed)
    Output(tmp_path, roll_bytes=5)


def test_a_path_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunnelError, match="file/out"):
        Output(tmp_path / "file" / "out")


def test_a_later_timeline_is_a_failover_and_an_earlier_one_is_refused(tmp_path: Path) -> None:
    from dataclasses import replace

    output = Output(tmp_path)
    later = replace(LINEAGE, timeline=2)
    assert output.sink.open(Position(later, 2, ORIGIN)).lineage == later
    with pytest.raises(Refused, match="timeline"):
        output.sink.open(Position(LINEAGE, 3, ORIGIN))


def test_too_long_a_change_is_rejected_and_the_others_are_written(tmp_path: Path) -> None:
    output = Output(tmp_path, max_record_bytes=300)
    wide = relation("wide", {"id": "numeric", "note": "text"}, schema='a"b')
    output.add(
        insert("1", "x", into=wide), insert("2.50", "y" * 300, into=wide), insert("3", "z", into=wide)
    )
    assert [row["key"]["id"] for row in output.rows("000000000001.jsonl")] == [1, 3]
    [reject] = output.rejects
    assert (reject.lsn, reject.seq, reject.table, reject.key) == (0x1000, 1, '"a""b".wide', '{"id":2.50}')
    assert "more than 300" in reject.reason
    assert json.loads(reject.change)["after"]["note"] == "y" * 300


@pytest.mark.parametrize(
    ("schema", "table", "folder"),
    [
        ("public", "orders", "public.orders"),
        ("public", "a.b/c", "public.a%2Eb%2Fc"),
        ("..", "..", "%2E%2E.%2E%2E"),
        ("_s", "_t_", "%5Fs.%5Ft_"),
        ("Straße", "名前", "Straße.名前"),
        ("100%", 'q"x y', "100%25.q%22x%20y"),
    ],
)
def test_a_folder_is_a_safe_name(schema: str, table: str, folder: str) -> None:
    assert folder_of(schema, table) == folder


def test_folders_of_the_longest_odd_names_differ_and_fit() -> None:
    first, second = folder_of("." * 63, "/" * 62 + "a"), folder_of("." * 63, "/" * 62 + "b")
    assert first != second
    assert len(first.encode()) <= 255


def test_numbers_are_found_in_names_of_data_only() -> None:
    assert number_of("public.orders/000000000017.jsonl.gz") == 17
    assert [number_of(n) for n in ("notes.jsonl", "17.jsonl", "000000000017.txt", "a000000000017.csv")] == [
        None
    ] * 4


def test_gzip_pieces_are_members_of_one_readable_file(tmp_path: Path) -> None:
    output = Output(tmp_path, compression="gzip")
    for n in range(3):
        output.add(insert(n, "x"))
    assert output.files() == ["000000000001.jsonl.gz"]
    text = gzip.decompress((tmp_path / "000000000001.jsonl.gz").read_bytes()).decode()
    assert [json.loads(line)["key"]["id"] for line in text.splitlines()] == [0, 1, 2]


def test_csv_has_a_header_and_tells_null_from_empty(tmp_path: Path) -> None:
    output = Output(tmp_path, format="csv")
    output.add(insert(1, 'a "q"'), insert(2, ""), insert(3, None))
    output.add(update(1, UNCHANGED, old=(9,)))
    lines = (tmp_path / "000000000001.csv").read_text().splitlines()
    assert lines[0] == ('"op","schema","table","lsn","seq","xid","time","key","before","after","unchanged"')
    assert lines[1] == (
        '"insert","public","items","0/1000",0,716,"2023-11-14T22:13:20.004096Z",'
        '"{""id"":1}",,"{""id"":1,""note"":""a \\""q\\""""}",'
    )
    assert lines[3].endswith('"{""id"":3,""note"":null}",')
    assert lines[4].endswith('"{""id"":1}","{""id"":9}","{""id"":1}","[""note""]"')
    assert len(lines) == 5


def test_csv_by_table_begins_another_file_when_the_columns_change(tmp_path: Path) -> None:
    output = Output(tmp_path, format="csv", layout="table")
    output.add(insert(1, "a"), insert(2, ""), insert(3, None))
    wider = relation("items", {"id": "int4", "note": "text", "more": "bytea"})
    output.add(insert(4, UNCHANGED, "\\x00", into=wider), insert(5, "b", None, into=wider))
    assert output.files() == ["public.items/000000000001.csv", "public.items/000000000002.csv"]
    first, second = ((tmp_path / name).read_text().splitlines() for name in output.files())
    assert first[0] == '"_op","_lsn","_seq","_commit_time","_unchanged","_before","id","note"'
    assert first[2:] == [
        '"insert","0/1000",1,"2023-11-14T22:13:20.004096Z",,,"2",""',
        '"insert","0/1000",2,"2023-11-14T22:13:20.004096Z",,,"3",',
    ]
    assert second[0].endswith('"id","note","more"')
    assert second[1].endswith('"[""note""]",,"4",,"\\x00"')


def test_messages_have_a_folder_of_their_own(tmp_path: Path) -> None:
    for form in ("jsonl", "csv", "parquet"):
        output = Output(tmp_path / form, format=form, layout="table")
        output.add(insert(1, "x"), message("audit", b"hello"))
        output.sink.flush()
        assert [name.partition("/")[0] for name in output.files()] == ["messages", "public.items"]


def test_a_table_with_our_column_names_keeps_its_own(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    odd = relation("odd", {"_op": "text", "_lsn": "text"}, key=())
    output = Output(tmp_path, format="parquet")
    output.add(insert("mine", "also mine", into=odd))
    output.sink.flush()
    table = pq.read_table(tmp_path / output.files()[0], partitioning=None)
    assert table["_op"].to_pylist() == ["mine"]
    assert table["__op"].to_pylist() == ["insert"]


def test_a_second_task_of_the_same_range_does_not_collide(tmp_path: Path) -> None:
    pipeline = Pipeline(FilesTarget(tmp_path, {}), tmp_path)
    some = history(2)
    batch = batch_of(ORIGIN, some)
    pipeline.tasks(batch, some)
    pipeline.commit(batch, pipeline.tasks(batch, some))
    assert pipeline.target.seen() == names(some)
