"""An output on an object store: what could not be written whole is not there at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from runnel.sinks.files.names import RECORD, STAGE
from runnel.sinks.files.remote import RemotePlace


class Stores:
    """A store, played by a directory, whose uploads break off: closing them keeps what was sent."""

    def __init__(self) -> None:
        self._fs: Any = fs.LocalFileSystem()
        self.lose: int | None = None
        self.silent = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fs, name)

    def open_output_stream(self, path: str, **options: Any) -> Any:
        return Upload(self, self._fs.open_output_stream(path, **options))


class Upload:
    def __init__(self, store: Stores, stream: Any) -> None:
        self._store = store
        self._stream = stream
        self._sent = 0

    def write(self, data: bytes) -> None:
        self._sent += len(data)
        if self._store.lose is None:
            self._stream.write(data)
            return
        self._stream.write(data[: -self._store.lose])
        if not self._store.silent:
            raise OSError(5, "the connection broke")

    def tell(self) -> int:
        return self._sent

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()


@pytest.fixture
def store() -> Stores:
    return Stores()


@pytest.fixture
def place(tmp_path: Path, store: Stores) -> RemotePlace:
    filesystem: Any = store
    (tmp_path / STAGE).mkdir(parents=True)
    return RemotePlace("s3://bucket/out", filesystem, str(tmp_path))


@pytest.mark.parametrize("silent", [False, True])
def test_a_record_that_could_not_be_written_whole_leaves_the_one_before(
    tmp_path: Path, place: RemotePlace, store: Stores, silent: bool
) -> None:
    place.replace(RECORD, b"the first one")
    store.lose, store.silent = 4, silent
    with pytest.raises(OSError, match="broke" if not silent else "not what was sent"):
        place.replace(RECORD, b"the second one")
    assert place.read(RECORD) == b"the first one"
    store.lose = None
    place.replace(RECORD, b"the second one")
    assert place.read(RECORD) == b"the second one"
    assert not list((tmp_path / STAGE).iterdir())


@pytest.mark.parametrize("silent", [False, True])
def test_a_file_that_could_not_be_written_whole_is_not_there(
    place: RemotePlace, store: Stores, silent: bool
) -> None:
    store.lose, store.silent = 4, silent
    with (
        pytest.raises(OSError, match="broke" if not silent else "not what was sent"),
        place.create("00000001.jsonl", "staged") as stream,
    ):
        stream.write(b"some lines")
    assert place.size("00000001.jsonl") is None


def test_a_file_whose_making_failed_is_not_there(place: RemotePlace) -> None:
    def make() -> None:
        with place.create("00000001.jsonl", "staged") as stream:
            stream.write(b"some lines")
            raise KeyError

    with pytest.raises(KeyError):
        make()
    assert place.size("00000001.jsonl") is None


def test_a_store_that_cannot_copy_holds_a_record_and_what_is_published_too(
    place: RemotePlace, store: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(*_: str) -> None:
        raise NotImplementedError

    monkeypatch.setattr(store, "copy_file", cannot, raising=False)
    place.replace(RECORD, b"the first one")
    assert place.read(RECORD) == b"the first one"
    place.replace("_runnel/stage/piece", b"some lines\n")
    place.publish("_runnel/stage/piece", "00000001.jsonl")
    assert place.read("00000001.jsonl") == b"some lines\n"


def test_what_belongs_to_another_output_is_not_among_the_names(place: RemotePlace, tmp_path: Path) -> None:
    (tmp_path / "lake/_runnel").mkdir(parents=True)
    (tmp_path / "public.orders").mkdir()
    for name in ("000000000001.jsonl", "lake/_runnel/position.json", "lake/000000000002.jsonl"):
        place.replace(name, b"{}")
    place.replace("public.orders/000000000003.jsonl", b"{}")
    (tmp_path / "deep/down").mkdir(parents=True)
    place.replace("deep/down/000000000004.jsonl", b"{}")
    assert sorted(place.data_names()) == ["000000000001.jsonl", "public.orders/000000000003.jsonl"]
