"""A network that takes every byte and passes none: noticed within a bound, and then made anew."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from runnel.capture import service, stream
from runnel.capture.subscription import Wanted, init
from runnel.config import load
from runnel.demo.server import Server
from runnel.log import open_log
from runnel.postgres import connect as postgres
from runnel.postgres.connect import connect
from runnel.progress.state import State
from servers import Database, Proxy, await_condition

MakeProxy = Callable[[Server], Proxy]


def test_a_statement_that_is_never_answered_loses_its_connection(
    pg: Database, make_proxy: MakeProxy
) -> None:
    proxy = make_proxy(pg.server)
    with connect(proxy.url(pg.url), "test", silence=0.5) as connection:
        assert connection.execute("SELECT pg_sleep(0.1)").fetchone()
        proxy.stall()
        with pytest.raises(psycopg.OperationalError, match="no answer"):
            connection.execute("SELECT 1")
        assert connection.closed
    proxy.resume()


@pytest.mark.parametrize("stalled", ["stream", "state"])
def test_capture_notices_a_stalled_network_and_connects_again(
    pg: Database,
    make_proxy: MakeProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    stalled: str,
) -> None:
    monkeypatch.setattr(stream, "PATIENCE", 1.0)
    monkeypatch.setattr(postgres, "SILENCE", 1.0)
    pg.execute("CREATE TABLE t (id int PRIMARY KEY)")
    proxy = make_proxy(pg.server)
    through = proxy.url(pg.url)
    with State.connect(pg.url, "shop") as state:
        init(pg.url, state, Wanted("shop", ("*.*",), ("p",)), lambda _: None)
    config = load(
        None,
        {
            "source": {
                "url": through if stalled == "stream" else pg.url,
                "name": "shop",
                "reconcile": 3600,
            },
            "state": {"url": through if stalled == "state" else pg.url},
            "log": {"path": str(tmp_path / "log")},
            "pipelines": {"p": {"sink": {"type": "stdout"}}},
        },
        default=None,
    )
    stop = threading.Event()
    capture = threading.Thread(target=service.run, args=(config, stop))

    def changes() -> int:
        log = open_log(config.log.path)
        first = log.usage().first
        return sum(ref.changes for ref in log.chunks(first)) if first is not None else 0

    try:
        capture.start()
        pg.execute("INSERT INTO t VALUES (1)")
        await_condition(lambda: changes() == 1)
        proxy.stall()
        pg.execute("INSERT INTO t VALUES (2)")
        await_condition(lambda: "trying again" in caplog.text, 20, what="capture notices")
        proxy.cut()
        proxy.resume()
        await_condition(lambda: changes() == 2, 60, what="capture goes on")
    finally:
        stop.set()
        capture.join(60)
    assert not capture.is_alive()
