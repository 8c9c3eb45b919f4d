from __future__ import annotations

import pytest

from runnel.errors import UsageError
from runnel.postgres.patterns import TablePatterns, label, label_of


@pytest.mark.parametrize(
    ("patterns", "schema", "table", "wanted"),
    [
        (["*.*"], "public", "orders", True),
        (["public.*"], "other", "orders", False),
        (["public.*", "!public.audit_*"], "public", "audit_log", False),
        (["!public.audit_*", "public.*"], "public", "audit_log", False),
        (["!public.audit_*"], "public", "orders", True),
        (["public.o*s"], "public", "orders", True),
        (["public.orders"], "public", "Orders", False),
        (['public."odd. name"'], "public", "odd. name", True),
        (['public."a*"'], "public", "ab", False),
        (['public."a*"'], "public", "a*", True),
        (['"say ""hi""".t'], 'say "hi"', "t", True),
        (["public.a.b"], "public", "x", None),
        (["orders"], "public", "x", None),
        (["*.*"], "public", "line\nbreak", True),
        (["public.[ab]"], "public", "a", False),
    ],
)
def test_a_pattern_takes_what_it_says(
    patterns: list[str], schema: str, table: str, wanted: bool | None
) -> None:
    if wanted is None:
        with pytest.raises(UsageError, match="not a table pattern"):
            TablePatterns(patterns)
    else:
        assert (TablePatterns(patterns).match(schema, table) is not None) is wanted


def test_a_literal_name_wins_over_a_wildcard() -> None:
    patterns = TablePatterns(["public.*", "public.orders"])
    found = patterns.match("public", "orders")
    assert found is not None
    assert found.literal
    assert [p.text for p in patterns.literals()] == ["public.orders"]


@pytest.mark.parametrize(
    ("schema", "table", "written"),
    [
        ("public", "orders", "public.orders"),
        ("public", "Odd name", "public.Odd name"),
        ("a.b", "c", '"a.b".c'),
        ("a", "b.c", 'a."b.c"'),
        ('a"', '.b"', '"a""".".b"""'),
    ],
)
def test_a_label_names_one_table_and_is_a_pattern_for_it(schema: str, table: str, written: str) -> None:
    assert label(schema, table) == written
    assert label_of(written) == written
    if " " not in written:
        [pattern] = TablePatterns([written]).literals()
        assert pattern.matches(schema, table)


def test_a_table_may_be_named_in_quotes_that_its_label_does_not_need() -> None:
    assert label_of('"public"."orders"') == "public.orders"
    assert label_of(' "a.b"."c" ') == '"a.b".c'
    assert label_of("messages") == "messages"
