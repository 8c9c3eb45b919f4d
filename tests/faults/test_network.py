"""Between a whole `runnel run` and its source the network breaks and stalls, while the source is written to."""

from __future__ import annotations

import random
from collections.abc import Callable

import psutil
import pytest

from history import Oracle, assert_equal, assert_tables
from product import Runnel, eventually
from runnel.demo.server import Server
from servers import Database, Proxy
from shop import processes
from traffic import SCHEMA, TABLES, Traffic

MakeProxy = Callable[[Server], Proxy]


def through(proxy: Proxy, make_runnel: Callable[..., Runnel], pg: Database) -> Runnel:
    """Runnel goes through the proxy, the test beside it."""
    pg.execute(SCHEMA)
    runnel = make_runnel(proxy.url(pg.url))
    runnel.url = pg.url
    runnel.run("init")
    return runnel


def delivers(runnel: Runnel, timeout: float = 120) -> None:
    before = runnel.position()
    eventually("delivery goes on", lambda: runnel.position() > before, timeout, tell=runnel.errors)


def said(runnel: Runnel) -> str:
    return (runnel.home / "stderr.log").read_text()


def assert_whole(runnel: Runnel, oracle: Oracle) -> None:
    runnel.await_delivery()
    process = runnel.processes[-1]
    assert process.poll() is None, runnel.errors()
    runnel.stop(process)
    assert_equal(oracle.entries(), runnel.lines())
    assert_tables(runnel.url, runnel.lines(), *TABLES)


def test_a_network_that_breaks_and_stalls_at_random_moments_loses_and_repeats_nothing(
    make_runnel: Callable[..., Runnel], pg: Database, make_proxy: MakeProxy
) -> None:
    proxy = make_proxy(pg.server)
    runnel = through(proxy, make_runnel, pg)
    oracle = Oracle(pg.url)
    runnel.start("run")
    eventually("the sink is open", runnel.position, tell=runnel.errors)
    chance = random.Random(31)
    faults = ["cut", "cut", "stalled", "stalled and cut", "refused"]
    chance.shuffle(faults)
    with Traffic(pg.url, seed=31, pause=0.01) as traffic:
        delivers(runnel)
        for fault in faults:
            moment = proxy.passed + chance.randrange(200_000)
            eventually("a random moment", lambda m=moment: proxy.passed > m, tell=runnel.errors)  # type: ignore[misc]
            if fault == "cut":
                proxy.cut()
                continue
            proxy.refuse() if fault == "refused" else proxy.stall()
            held, more = proxy.passed, traffic.done + chance.randrange(20, 80)
            eventually("the source goes on", lambda m=more: traffic.done > m)  # type: ignore[misc]
            assert proxy.passed == held
            if fault == "stalled and cut":
                proxy.cut()
            proxy.resume()
            delivers(runnel)
    assert_whole(runnel, oracle)


@pytest.mark.long
def test_a_network_that_passes_nothing_any_more_is_noticed_and_left(
    make_runnel: Callable[..., Runnel], pg: Database, make_proxy: MakeProxy
) -> None:
    proxy = make_proxy(pg.server)
    runnel = through(proxy, make_runnel, pg)
    oracle = Oracle(pg.url)
    runnel.start("run")
    eventually("the sink is open", runnel.position, tell=runnel.errors)
    with Traffic(pg.url, seed=37, pause=0.05):
        delivers(runnel)
        proxy.stall()
        eventually(
            "capture and driver notice",
            lambda: "capture is reconnecting" in said(runnel) and "copy is retrying" in said(runnel),
            tell=runnel.errors,
        )
        proxy.cut()
        proxy.resume()
        delivers(runnel)
    assert_whole(runnel, oracle)


@pytest.mark.long
def test_a_driver_whose_state_connection_alone_is_stalled_goes_on_over_another(
    make_runnel: Callable[..., Runnel], pg: Database, make_proxy: MakeProxy
) -> None:
    proxy = make_proxy(pg.server)
    runnel = through(proxy, make_runnel, pg)
    oracle = Oracle(pg.url)
    process = runnel.start("run")
    eventually("the sink is open", runnel.position, tell=runnel.errors)
    with Traffic(pg.url, seed=41, pause=0.05):
        delivers(runnel)
        made = proxy.connections
        proxy.stall(ports(process.pid, "driver", proxy))
        eventually("the driver notices", lambda: "copy is retrying" in said(runnel), tell=runnel.errors)
        assert "capture is reconnecting" not in said(runnel)
        delivers(runnel)
        assert proxy.connections > made
    assert_whole(runnel, oracle)  # nothing was resumed: the stalled connection never came back


def ports(pid: int, role: str, proxy: Proxy) -> set[int]:
    """Of the connections that processes of this role hold to the proxy."""
    found = {
        connection.laddr.port
        for process in processes(pid, role)
        for connection in process.net_connections()
        if connection.raddr and connection.raddr.port == proxy.port
        and connection.status == psutil.CONN_ESTABLISHED
    }  # fmt: skip
    assert found
    return found
