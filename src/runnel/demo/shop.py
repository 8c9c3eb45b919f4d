"""A small shop that is never still: its tables, and a writer that keeps count of what it committed.

What must hold: `Writer.changes` is exactly the number of row changes committed since it began, so that
the demo can say at its end whether every one of them arrived.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable

import psycopg

SCHEMA = """
CREATE TABLE customers (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    email text NOT NULL UNIQUE,
    preferences jsonb NOT NULL DEFAULT '{}',
    joined_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE products (
    sku text PRIMARY KEY,
    title text NOT NULL,
    price numeric(10, 2) NOT NULL,
    stock int NOT NULL,
    tags text[] NOT NULL DEFAULT '{}'
);
CREATE TYPE order_status AS ENUM ('placed', 'paid', 'shipped');
CREATE TABLE orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer_id bigint NOT NULL REFERENCES customers,
    status order_status NOT NULL DEFAULT 'placed',
    note text,
    placed_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE order_items (
    order_id bigint NOT NULL REFERENCES orders ON DELETE CASCADE,
    line int NOT NULL,
    sku text NOT NULL REFERENCES products,
    quantity int NOT NULL,
    price numeric(10, 2) NOT NULL,
    PRIMARY KEY (order_id, line)
);
INSERT INTO products (sku, title, price, stock, tags)
SELECT format('%s-%s', upper(left(thing, 3)), 100 + n), format('%s %s', colour, thing),
       4 + (n * 37 % 160) + 0.95, 100000, ARRAY[colour, thing]
  FROM unnest(ARRAY['red', 'green', 'blue', 'black', 'white']) WITH ORDINALITY AS c (colour, i),
       unnest(ARRAY['mug', 'lamp', 'chair', 'bottle', 'scarf', 'kettle']) WITH ORDINALITY AS t (thing, j),
       LATERAL (SELECT (i * 10 + j)::int AS n) AS numbered;
INSERT INTO customers (name, email)
SELECT format('%s %s', first, last), format('%s.%s@example.com', lower(first), lower(last))
  FROM unnest(ARRAY['Ada', 'Grace', 'Edsger', 'Barbara', 'Alan', 'Radia']) AS f (first),
       unnest(ARRAY['Ito', 'Meier', 'Núñez', 'Okafor', 'Smith']) AS l (last);
"""

TRANSACTIONS_A_SECOND = 40
_NOTES = (
    None,
    None,
    None,
    "leave it at the door",
    'call "before" you come',
    "gift: wrap it\nand add a card",
)

Connection = psycopg.Connection[tuple[object, ...]]


class Writer:
    """Customers come, order, pay, change their minds. One transaction after another, in a thread."""

    def __init__(self, url: str, seed: int = 7) -> None:
        self.changes = 0
        self.transactions = 0
        self.by_kind: Counter[str] = Counter()
        self.error: BaseException | None = None
        self._url = url
        self._random = random.Random(seed)
        self._skus: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shop", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=10)

    def _run(self) -> None:
        try:
            with psycopg.connect(self._url, autocommit=True, application_name="shop") as connection:
                self._skus = [
                    str(row[0]) for row in connection.execute("SELECT sku FROM products").fetchall()
                ]
                while not self._stop.wait(self._random.expovariate(TRANSACTIONS_A_SECOND)):
                    self._transact(connection)
        except psycopg.Error as error:
            self.error = error

    def _transact(self, connection: Connection) -> None:
        acts: list[Callable[[Connection], Counter[str]]] = [
            self._order, self._pay, self._ship, self._restock, self._join, self._cancel, self._prefer,
        ]  # fmt: skip
        (act,) = self._random.choices(acts, weights=[40, 25, 20, 5, 4, 3, 3])
        with connection.transaction():
            done = act(connection)
        self.by_kind += done
        self.changes += done.total()
        self.transactions += 1

    def _order(self, connection: Connection) -> Counter[str]:
        row = connection.execute(
            "INSERT INTO orders (customer_id, note) "
            "SELECT id, %s FROM customers ORDER BY random() LIMIT 1 RETURNING id",
            (self._random.choice(_NOTES),),
        ).fetchone()
        chosen = self._random.sample(self._skus, self._random.randint(1, 5))
        items = connection.execute(
            "INSERT INTO order_items (order_id, line, sku, quantity, price) "
            "SELECT %s, n, p.sku, 1 + n %% 3, p.price "
            "FROM unnest(%s::text[]) WITH ORDINALITY AS c (sku, n) JOIN products p USING (sku)",
            (row and row[0], chosen),
        ).rowcount
        sold = connection.execute(
            "UPDATE products SET stock = stock - 1 WHERE sku = ANY (%s)", (chosen,)
        ).rowcount
        return Counter(insert=1 + items, update=sold)

    def _pay(self, connection: Connection) -> Counter[str]:
        return self._move(connection, "placed", "paid")

    def _ship(self, connection: Connection) -> Counter[str]:
        return self._move(connection, "paid", "shipped")

    def _move(self, connection: Connection, before: str, after: str) -> Counter[str]:
        moved = connection.execute(
            "UPDATE orders SET status = %s::order_status WHERE id IN "
            "(SELECT id FROM orders WHERE status = %s::order_status ORDER BY id LIMIT 1)",
            (after, before),
        )
        return Counter(update=moved.rowcount)

    def _restock(self, connection: Connection) -> Counter[str]:
        stocked = connection.execute(
            "UPDATE products SET stock = stock + 500, price = round(price * %s, 2) WHERE sku = ANY (%s)",
            (self._random.choice(("0.95", "1.02")), self._random.sample(self._skus, 5)),
        )
        return Counter(update=stocked.rowcount)

    def _join(self, connection: Connection) -> Counter[str]:
        number = self.transactions
        joined = connection.execute(
            "INSERT INTO customers (name, email) VALUES (%s, %s)",
            (f"Customer {number}", f"customer.{number}@example.com"),
        )
        return Counter(insert=joined.rowcount)

    def _prefer(self, connection: Connection) -> Counter[str]:
        preferred = connection.execute(
            "UPDATE customers SET preferences = preferences || jsonb_build_object('colour', %s::text) "
            "WHERE id IN (SELECT id FROM customers ORDER BY random() LIMIT 1)",
            (self._random.choice(("red", "green", "blue")),),
        )
        return Counter(update=preferred.rowcount)

    def _cancel(self, connection: Connection) -> Counter[str]:
        chosen = connection.execute(
            "SELECT id FROM orders WHERE status = 'placed' ORDER BY random() LIMIT 1"
        ).fetchone()
        if chosen is None:
            return Counter()
        items = connection.execute("DELETE FROM order_items WHERE order_id = %s", chosen).rowcount
        orders = connection.execute("DELETE FROM orders WHERE id = %s", chosen).rowcount
        return Counter(delete=items + orders)
