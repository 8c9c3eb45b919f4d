"""Changes of parked keys leave the window as letters; everything else stays, in order."""

from __future__ import annotations

import json

from runnel.changes.block import Window
from runnel.marshal.json import lines
from runnel.postgres.lsn import Lsn
from runnel.sinks.api import Reject
from runnel.sinks.files.text import reject
from runnel.spark.parked import Parked, covering, covers, named
from windows import ITEMS, Transaction, delete, insert, message, relation, truncate, update, window

OTHER = relation("other")
PARKED = [("public.items", '{"id":1}')]


def told(some: Window) -> list[tuple[str, str, str]]:
    found = [json.loads(line) for line in bytes(lines(some).data).splitlines()]
    return [(c["op"], c["table"], json.dumps(c.get("key"), separators=(",", ":"))) for c in found]


def letter(table: str, key: str, old: str | None = None) -> Reject:
    return Reject(Lsn(100), 0, table, key, "{}", "too long", old)


def test_a_window_without_a_parked_table_passes_untouched() -> None:
    some = window(Transaction(100, (insert(1, "a", into=OTHER),)))
    kept, letters = Parked(PARKED).divide(some)
    assert kept is some
    assert not letters


def test_changes_of_a_parked_key_become_letters_and_the_rest_keeps_its_order() -> None:
    some = window(
        Transaction(100, (insert(2, "b"), update(1, "x"), insert(9, "o", into=OTHER))),
        Transaction(200, (delete(1), update(2, "c"))),
    )
    kept, letters = Parked(PARKED).divide(some)
    assert told(kept) == [
        ("insert", "items", '{"id":2}'),
        ("insert", "other", '{"id":9}'),
        ("update", "items", '{"id":2}'),
    ]
    assert kept.changes == 3
    assert [(int(one.lsn), one.seq, one.key) for one in letters] == [
        (100, 1, '{"id":1}'),
        (200, 0, '{"id":1}'),
    ]
    assert json.loads(letters[0].change)["after"] == {"id": 1, "note": "x"}


def test_a_parked_row_stays_parked_under_its_new_key_also_in_the_next_window() -> None:
    parked = Parked(PARKED)
    kept, letters = parked.divide(
        window(Transaction(100, (update(5, "moved", old=(1,)), insert(6, "b"), update(5, "again"))))
    )
    assert told(kept) == [("insert", "items", '{"id":6}')]
    assert [one.key for one in letters] == ['{"id":5}', '{"id":5}']
    kept, letters = parked.divide(window(Transaction(200, (delete(5), delete(6)))))
    assert told(kept) == [("delete", "items", '{"id":6}')]
    assert [one.key for one in letters] == ['{"id":5}']


def test_the_key_that_a_letter_moves_its_row_away_from_is_parked_behind_it() -> None:
    parked = Parked([("public.items", '{"id":5}')])
    kept, letters = parked.divide(
        window(Transaction(100, (insert(1, "a"), update(5, "moved", old=(1,)), insert(1, "b"))))
    )
    assert told(kept) == [("insert", "items", '{"id":1}')]
    assert [(one.key, one.old_key) for one in letters] == [('{"id":5}', '{"id":1}'), ('{"id":1}', None)]
    kept, letters = parked.divide(window(Transaction(200, (update(1, "c"), insert(7, "d")))))
    assert told(kept) == [("insert", "items", '{"id":7}')]


def test_a_row_that_moves_to_a_parked_key_leaves_its_own_parked() -> None:
    _, letters = Parked(PARKED).divide(window(Transaction(100, (update(1, "x", old=(9,)), insert(9, "y")))))
    assert [(one.key, one.old_key) for one in letters] == [('{"id":1}', '{"id":9}'), ('{"id":9}', None)]


def test_a_full_old_row_tells_its_key() -> None:
    full = window(Transaction(100, (update(5, "moved", old=(1, "before")), update(7, "x", old=(7, "y")))))
    kept, letters = Parked(PARKED).divide(full)
    assert [one.key for one in letters] == ['{"id":5}']
    assert told(kept) == [("update", "items", '{"id":7}')]


def test_a_parked_table_gives_all_its_changes_and_a_parked_key_lets_a_truncate_pass() -> None:
    some = window(Transaction(100, (truncate(ITEMS), insert(3, "c"))))
    assert Parked([("public.items", None)]).divide(some)[0].changes == 0
    assert Parked(PARKED).divide(some)[0].changes == 2


def test_a_message_is_parked_by_its_name_and_those_behind_it_stay() -> None:
    some = window(
        Transaction(100, (message("app", b"long"), message("app", b"short"), insert(1, "a"))),
        Transaction(200, (message("app", b"later"),)),
    )
    [rejected] = named([Reject(Lsn(100), 0, "", None, "{}", "too long")], some)
    kept, letters = Parked([(rejected.table, rejected.key)]).divide(some)
    assert kept.changes == 3
    assert [(one.lsn, one.seq, one.table, one.key) for one in letters] == [
        (rejected.lsn, rejected.seq, rejected.table, rejected.key)
    ]
    assert json.loads(letters[0].change)["content"] == "long"


def test_a_table_whose_deletes_do_not_tell_its_key_is_parked_as_a_whole() -> None:
    by_email = relation("people", {"id": "int4", "email": "text"}, identity=(1,))
    some = window(
        Transaction(100, (insert(1, "a", into=by_email), insert(9, "o", into=OTHER))),
        Transaction(200, (delete("a", of=by_email), insert(2, "b", into=by_email))),
    )
    rejects = [Reject(Lsn(100), seq, f"public.{table}", key, "{}", "too long")
               for seq, table, key in ((0, "people", '{"id":1}'), (1, "other", '{"id":9}'))]  # fmt: skip
    found = named(rejects, some)
    assert [(one.table, one.key) for one in found] == [
        ("public.people", None),
        ("public.other", '{"id":9}'),
    ]
    kept, letters = Parked([(found[0].table, found[0].key)]).divide(some)
    assert told(kept) == [("insert", "other", '{"id":9}')]
    assert [(json.loads(one.change)["op"], one.key) for one in letters] == [
        ("insert", None),
        ("delete", None),
        ("insert", None),
    ]


def test_a_key_parked_before_the_identity_became_an_index_beside_it_parks_the_whole_table() -> None:
    by_email = relation("items", {"id": "int4", "email": "text"}, identity=(1,))
    some = window(Transaction(100, (delete("a", of=by_email), insert(9, "o", into=OTHER))))
    kept, letters = Parked(PARKED).divide(some)
    assert told(kept) == [("insert", "other", '{"id":9}')]
    assert [one.key for one in letters] == [None]


def test_tables_whose_names_hold_dots_are_parked_apart() -> None:
    first, second = relation("c", schema="a.b"), relation("b.c", schema="a")
    some = window(Transaction(100, (insert(1, "x", into=first), insert(1, "y", into=second))))
    rejected = reject(bytes(lines(some).data).splitlines()[0], "too long")
    assert rejected.table == '"a.b".c'
    kept, letters = Parked([(rejected.table, rejected.key)]).divide(some)
    assert told(kept) == [("insert", "b.c", '{"id":1}')]
    assert [one.table for one in letters] == [rejected.table]


def test_keys_of_a_table_that_is_parked_whole_make_no_difference() -> None:
    whole = covering([("a", None), ("a", "1"), ("b", "1")])
    assert whole == covering([("b", "1"), ("a", None), ("a", "2")])
    assert covers(whole, letter("a", "3", old="4"))
    assert covers(whole, letter("b", "1"))
    assert not covers(whole, letter("b", "2"))
    assert not covers(whole, letter("b", "1", old="2"))
