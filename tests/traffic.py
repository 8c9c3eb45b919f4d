"""Random but repeatable writes: what an application does to its tables, with everything that is hard for a
reader of the stream. One seed gives one sequence of statements."""

from __future__ import annotations

import random
import threading
from types import TracebackType

import psycopg

SCHEMA = """
create table accounts (id bigint primary key, name text, balance numeric, active boolean, note text);
create table "Odd ""name"".x" (a int, b text, "sp ace" text, primary key (a, b));
create table events (id bigint generated always as identity primary key, account bigint, body text);
create table loose (v text, n int);
alter table loose replica identity full;
alter table accounts alter note set storage external;
"""
TABLES = ("public.accounts", "public.events", 'public.Odd "name".x')


class Traffic:
    """Writes transactions until stopped (or `count` of them), in a thread of its own, surviving server
    restarts: a transaction whose commit was not confirmed may or may not be in the history."""

    def __init__(self, url: str, seed: int, count: int | None = None, pause: float = 0.0) -> None:
        self.url, self.count, self.pause = url, count, pause
        self.random = random.Random(seed)
        self.done = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.error: BaseException | None = None

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        if self.error is not None:
            raise self.error

    def finish(self) -> None:
        """Wait for all of `count`."""
        self._thread.join(120)
        self.stop()

    def _run(self) -> None:
        try:
            while not self._stop.is_set() and (self.count is None or self.done < self.count):
                try:
                    self._session()
                except psycopg.OperationalError:
                    self._stop.wait(0.2)
        except BaseException as error:  # noqa: BLE001 - handed to the test's own thread
            self.error = error

    def _session(self) -> None:
        with psycopg.connect(self.url) as connection:
            while not self._stop.is_set() and (self.count is None or self.done < self.count):
                with connection.transaction():
                    self._transaction(connection)
                self.done += 1
                if self.pause:
                    self._stop.wait(self.pause)

    def _transaction(self, connection: psycopg.Connection[object]) -> None:
        for _ in range(self.random.choice((1, 1, 2, 5, 20))):
            if self.random.random() < 0.1:
                try:
                    with connection.transaction():  # a savepoint that is rolled back
                        self._statement(connection)
                        raise psycopg.Rollback
                except psycopg.Rollback:
                    pass
            else:
                self._statement(connection)

    def _statement(self, connection: psycopg.Connection[object]) -> None:
        r = self.random
        number = r.randrange(500)
        kind = r.random()
        if kind < 0.45:
            connection.execute(
                "insert into accounts values (%s, %s, %s, %s, %s) on conflict (id) do update"
                " set name = excluded.name, balance = accounts.balance + 1",
                (
                    number,
                    r.choice((None, "", "Zoë", 'say "hi" \\ \n\t', "x" * 50)),
                    r.choice((None, 1, "1e-20", "NaN")),
                    r.choice((None, True, False)),
                    r.choice((None, "long " * 1000, "short")),
                ),
            )
        elif kind < 0.6:
            connection.execute("update accounts set active = not active where id = %s", (number,))
        elif kind < 0.66:
            connection.execute(
                "update accounts set id = %s where id = %s"
                " and not exists (select from accounts where id = %s)",
                (number + 1000, number, number + 1000),
            )
        elif kind < 0.76:
            connection.execute("delete from accounts where id in (%s, %s)", (number, number + 1000))
        elif kind < 0.86:
            connection.execute(
                'insert into "Odd ""name"".x" values (%s, %s, %s)'
                ' on conflict (a, b) do update set "sp ace" = %s',
                (number % 7, r.choice(("k", "é", "")), "v", str(number)),
            )
        elif kind < 0.96:
            connection.execute(
                "insert into events (account, body) select %s, repeat('b', %s) from generate_series(1, %s)",
                (number, r.choice((0, 10, 300)), r.choice((1, 3, 50))),
            )
        elif kind < 0.985:
            connection.execute("insert into loose values ('same', 1), ('same', 1)")
            connection.execute("update loose set n = n + 1 where ctid = (select min(ctid) from loose)")
            connection.execute("delete from loose where ctid = (select max(ctid) from loose)")
        else:
            connection.execute("truncate events, loose")
