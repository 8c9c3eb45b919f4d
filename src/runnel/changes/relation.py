"""A table as it was when a change was written: names, columns, types, and what identifies a row.

pgoutput's Relation message gives names, type oids and which columns belong to the replica identity;
capture adds what only the catalogue knows (the primary key under REPLICA IDENTITY FULL, arrays'
elements, domains' bases). Two equal relations are the same version.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..postgres.patterns import label
from ..postgres.types import ColumnType


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: ColumnType
    typmod: int
    identity: bool
    """Part of the replica identity: present in an old key."""


class Outline(NamedTuple):
    """What decides how a table's rows are laid out: tables of one outline are worked on together."""

    columns: int
    key: tuple[int, ...]
    identity: tuple[int, ...]
    """Positions of the columns that an old key has."""


@dataclass(frozen=True, slots=True)
class Relation:
    oid: int
    schema: str
    name: str
    identity: str
    """pg_class.relreplident: d(efault), n(othing), f(ull), i(ndex)."""
    columns: tuple[Column, ...]
    key: tuple[int, ...]
    """Positions in `columns` of the primary key, else of the identity index; empty without a key."""
    outline: Outline = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        identity = tuple(place for place, column in enumerate(self.columns) if column.identity)
        object.__setattr__(self, "outline", Outline(len(self.columns), self.key, identity))

    @property
    def label(self) -> str:
        return label(self.schema, self.name)

    @property
    def tells_key(self) -> bool:
        """Whether a row's key is the same in all its changes: it has one, and an old key has its columns.
        A delete of a table whose replica identity is an index beside the primary key has other ones."""
        return bool(self.key) and set(self.key) <= set(self.outline.identity)

    def to_json(self) -> dict[str, Any]:
        return {
            "oid": self.oid,
            "schema": self.schema,
            "name": self.name,
            "identity": self.identity,
            "columns": [
                {"name": c.name, "type": c.type.to_json(), "typmod": c.typmod, "id": c.identity}
                for c in self.columns
            ],
            "key": list(self.key),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Relation:
        return cls(
            oid=value["oid"],
            schema=value["schema"],
            name=value["name"],
            identity=value["identity"],
            columns=tuple(
                Column(c["name"], ColumnType.from_json(c["type"]), c["typmod"], c["id"])
                for c in value["columns"]
            ),
            key=tuple(value["key"]),
        )
