"""Transactions of unusual shape, from the source to the output."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from history import Oracle, assert_equal
from product import Runnel
from servers import Database

SAVEPOINTS = """do $$ begin for i in 1..{count} loop
  begin
    insert into t values (i, repeat('x', 100));
    if i % 10 = 0 then raise division_by_zero; end if;
  exception when division_by_zero then null; end;
end loop; end $$"""


@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_a_transaction_of_many_sub_transactions_arrives_without_those_rolled_back(
    make_runnel: Callable[..., Runnel], pg: Database, count: int
) -> None:
    pg.execute(
        "create table t (id int primary key, note text)",
        f"alter database \"{pg.name}\" set logical_decoding_work_mem = '64kB'",
    )
    runnel = make_runnel(pg.url, log={"chunk_bytes": "256KiB"})
    runnel.run("init")
    oracle = Oracle(pg.url)
    pg.execute(SAVEPOINTS.format(count=count), "insert into t values (0, 'after')")
    runnel.run("run", "--once", timeout=280)
    expected = oracle.entries()
    assert len(expected) == count * 9 // 10 + 1
    assert_equal(expected, runnel.lines())
