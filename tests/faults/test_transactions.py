"""Transactions of unusual shape, from the source to the output."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from history import Oracle, assert_equal, assert_tables
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


FRAMES = """select distinct chr(get_byte(data, 0)) from pg_logical_slot_peek_binary_changes('frames', null, null,
 'proto_version', '4', 'publication_names', 'shop', 'streaming', 'on')"""


def test_changes_that_were_replicated_into_the_source_arrive_like_others(
    make_runnel: Callable[..., Runnel], pg: Database
) -> None:
    pg.execute(
        "create table t (id int primary key, note text)",
        f"alter database \"{pg.name}\" set logical_decoding_work_mem = '64kB'",
    )
    runnel = make_runnel(pg.url, log={"chunk_bytes": "256KiB"})
    runnel.run("init")
    oracle = Oracle(pg.url)
    origin = f"origin of {pg.name}"
    with pg.connect() as connection:
        connection.execute("select pg_create_logical_replication_slot('frames', 'pgoutput')")
        connection.execute("select pg_replication_origin_create(%s)", (origin,))
        connection.execute("select pg_replication_origin_session_setup(%s)", (origin,))
        try:
            with connection.transaction():
                connection.execute("select pg_replication_origin_xact_setup('0/1234567', now())")
                connection.execute("insert into t values (1, 'from elsewhere'), (2, 'too')")
            with connection.transaction():
                connection.execute("select pg_replication_origin_xact_setup('0/1234999', now())")
                connection.execute(
                    "insert into t select i, repeat('x', 100) from generate_series(3, 5000) i"
                )
                with connection.transaction(force_rollback=True):
                    connection.execute("insert into t select -i, 'no' from generate_series(1, 2000) i")
                connection.execute("update t set note = 'y' where id % 7 = 0")
        finally:
            connection.execute("select pg_replication_origin_session_reset()")
            connection.execute("select pg_replication_origin_drop(%s)", (origin,))
        connection.execute("delete from t where id < 10")  # and one of the source's own
        frames = {kind for (kind,) in connection.execute(FRAMES.encode()).fetchall()}
        assert {"O", "S", "B"} <= frames, "the server sent origins, in a stream and outside of one"
    runnel.run("run", "--once")
    assert_equal(oracle.entries(), runnel.lines())
    assert_tables(pg.url, runnel.lines(), "public.t")
