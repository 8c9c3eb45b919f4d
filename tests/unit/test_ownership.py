"""Who may publish a table that belongs to another role, and what `check` says to make it so."""

from __future__ import annotations

import pytest

from runnel.postgres.catalog import Table, _judge_itself


@pytest.mark.parametrize(
    ("owner", "owner_super", "remedy"),
    [
        ("app", False, 'GRANT "app" TO "cdc"'),
        ('odd"one', False, 'GRANT "odd""one" TO "cdc"'),
        ("postgres", True, 'ALTER TABLE public.orders OWNER TO "cdc"'),
    ],
)
def test_the_remedy_names_the_capture_role_and_never_makes_it_a_superuser(
    owner: str, owner_super: bool, remedy: str
) -> None:
    table = Table(
        oid=1, schema="public", name="orders", kind="r", unlogged=False, identity="default",
        key=("id",), identifying=("id",), owned=False, owner=owner, owner_super=owner_super, role="cdc",
        parent=None, virtual=False, sql="public.orders",
    )  # fmt: skip
    _judge_itself(table)
    assert table.unusable == f"owned by {owner}: this role may not publish it"
    assert table.remedy == remedy
