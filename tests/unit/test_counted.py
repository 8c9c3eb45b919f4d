"""One of a thing is not called many."""

from __future__ import annotations

import pytest

from runnel.errors import counted


@pytest.mark.parametrize(("number", "said"), [(0, "0 tables"), (1, "1 table"), (2, "2 tables")])
def test_a_number_of_things_is_said_as_people_say_it(number: int, said: str) -> None:
    assert counted(number, "table") == said
