from __future__ import annotations

from runnel.postgres.types import ColumnType, Shape, builtin


def test_built_in_types_are_known_without_a_query() -> None:
    assert builtin(23) == ColumnType(23, "int4", Shape.NUMBER)
    assert builtin(16) == ColumnType(16, "bool", Shape.BOOLEAN)
    assert builtin(3802) == ColumnType(3802, "jsonb", Shape.JSON)
    assert builtin(2950) == ColumnType(2950, "uuid", Shape.TEXT)
    assert builtin(16384) is None


def test_an_array_knows_its_element_and_delimiter() -> None:
    integers, boxes = builtin(1007), builtin(1020)
    assert integers == ColumnType(1007, "_int4", Shape.ARRAY, builtin(23), ",")
    assert boxes is not None
    assert boxes.delimiter == ";"


def test_vectors_and_points_are_text_though_they_have_elements() -> None:
    assert [builtin(oid).shape for oid in (22, 30, 600)] == [Shape.TEXT] * 3  # type: ignore[union-attr]


def test_a_type_survives_json() -> None:
    for oid in (23, 1007, 1020, 3807):
        known = builtin(oid)
        assert known is not None
        assert ColumnType.from_json(known.to_json()) == known


def test_a_domain_is_of_its_base_also_behind_json() -> None:
    day = ColumnType(16500, "date", Shape.TEXT, domain_of=1082)
    assert (day.base, ColumnType(16501, "date", Shape.TEXT).base) == (1082, 16501)
    assert ColumnType.from_json(day.to_json()) == day


def test_a_stored_domain_without_its_base_is_known_by_its_name_and_a_users_type_is_not() -> None:
    old = {"oid": 90_000, "name": "int4", "shape": "number"}
    assert ColumnType.from_json(old).base == 23
    own = ColumnType(90_000, "int4", Shape.TEXT)
    assert ColumnType.from_json(own.to_json()) == own
