"""What a column's type means to the edges: how its text becomes JSON, Arrow or SQL.

Postgres' own text travels untouched through capture, log and decoding; only edges look at a
`ColumnType`. Domains are already resolved to their base here: `oid` is what the table says,
`name` the base type's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Shape(StrEnum):
    """How a value's text appears in JSON."""

    NUMBER = "number"
    BOOLEAN = "boolean"
    JSON = "json"
    ARRAY = "array"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class ColumnType:
    oid: int
    name: str
    shape: Shape
    element: ColumnType | None = None
    delimiter: str = ","

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"oid": self.oid, "name": self.name, "shape": self.shape.value}
        if self.element is not None:
            out["element"] = self.element.to_json()
            out["delimiter"] = self.delimiter
        return out

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ColumnType:
        element = value.get("element")
        return cls(
            oid=value["oid"],
            name=value["name"],
            shape=Shape(value["shape"]),
            element=cls.from_json(element) if element is not None else None,
            delimiter=value.get("delimiter", ","),
        )
