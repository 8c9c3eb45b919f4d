"""What a column's type means to the edges: how its text becomes JSON, Arrow or SQL.

Postgres' own text travels untouched through capture, log and decoding; only edges look at a
`ColumnType`. Domains are already resolved to their base here: `oid` is what the table says,
`name` the base type's name. A user's type may have any name, also `bool`: what a type is, `base` says.

`builtin` knows Postgres' own types by heart (their oids never change); `resolve` asks the catalogue
for the rest: domains down to their base, arrays with element and delimiter. Enums, composites,
ranges and extension types are text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import psycopg
from psycopg.rows import tuple_row


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
    domain_of: int = 0
    """Of a domain: the oid of the type at its bottom."""

    @property
    def base(self) -> int:
        """The oid of the type whose values these are: a domain's are those of its base."""
        return self.domain_of or self.oid

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"oid": self.oid, "name": self.name, "shape": self.shape.value}
        if self.element is not None:
            out["element"] = self.element.to_json()
            out["delimiter"] = self.delimiter
        if self.oid not in _TYPES:
            out["domain_of"] = self.domain_of
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
            domain_of=value["domain_of"] if "domain_of" in value else _named(value["oid"], value["name"]),
        )


def _named(oid: int, name: str) -> int:
    """Chunks of before it was written down call a domain by its base's name, and say nothing else."""
    base = BUILTIN.get(name, 0)
    return base if base != oid else 0


# name, oid, oid of its array type. New in some version (multiranges in 14) is harmless here.
_BUILTIN = """
    bool 16 1000, bytea 17 1001, char 18 1002, name 19 1003, int8 20 1016, int2 21 1005,
    int2vector 22 1006, int4 23 1007, regproc 24 1008, text 25 1009, oid 26 1028, tid 27 1010,
    xid 28 1011, cid 29 1012, oidvector 30 1013, json 114 199, xml 142 143, point 600 1017,
    lseg 601 1018, path 602 1019, box 603 1020, polygon 604 1027, line 628 629, cidr 650 651,
    float4 700 1021, float8 701 1022, circle 718 719, macaddr8 774 775, money 790 791,
    macaddr 829 1040, inet 869 1041, aclitem 1033 1034, bpchar 1042 1014, varchar 1043 1015,
    date 1082 1182, time 1083 1183, timestamp 1114 1115, timestamptz 1184 1185, interval 1186 1187,
    timetz 1266 1270, bit 1560 1561, varbit 1562 1563, numeric 1700 1231, refcursor 1790 2201,
    regprocedure 2202 2207, regoper 2203 2208, regoperator 2204 2209, regclass 2205 2210,
    regtype 2206 2211, uuid 2950 2951, txid_snapshot 2970 2949, pg_lsn 3220 3221,
    tsvector 3614 3643, tsquery 3615 3645, gtsvector 3642 3644, regconfig 3734 3735,
    regdictionary 3769 3770, jsonb 3802 3807, int4range 3904 3905, numrange 3906 3907,
    tsrange 3908 3909, tstzrange 3910 3911, daterange 3912 3913, int8range 3926 3927,
    jsonpath 4072 4073, regnamespace 4089 4090, regrole 4096 4097, regcollation 4191 4192,
    int4multirange 4451 6150, nummultirange 4532 6151, tsmultirange 4533 6152,
    tstzmultirange 4534 6153, datemultirange 4535 6155, int8multirange 4536 6157,
    pg_snapshot 5038 5039, xid8 5069 271
"""
_SHAPES = {
    **dict.fromkeys(("int2", "int4", "int8", "oid", "float4", "float8", "numeric"), Shape.NUMBER),
    **dict.fromkeys(("json", "jsonb"), Shape.JSON),
    "bool": Shape.BOOLEAN,
}


def _builtins() -> dict[int, ColumnType]:
    out: dict[int, ColumnType] = {}
    for entry in _BUILTIN.split(","):
        name, oid, array = entry.split()
        base = ColumnType(int(oid), name, _SHAPES.get(name, Shape.TEXT))
        delimiter = ";" if name == "box" else ","
        out[base.oid] = base
        out[int(array)] = ColumnType(int(array), f"_{name}", Shape.ARRAY, base, delimiter)
    return out


_TYPES = _builtins()
BUILTIN = {known.name: oid for oid, known in _TYPES.items()}
"""Oids of Postgres' own types by name."""


def builtin(oid: int) -> ColumnType | None:
    """A type that every Postgres has, without asking; None for any other."""
    return _TYPES.get(oid)


def resolve(connection: psycopg.Connection[Any], oids: Iterable[int]) -> dict[int, ColumnType]:
    """The types behind `oids`. Built-in ones cost no query, the others one per level of nesting.

    An oid that the catalogue no longer knows (the type was dropped after the change was written)
    is text: its values still travel as Postgres wrote them.
    """
    wanted = set(oids)
    rows: dict[int, tuple[str, int, int, str] | None] = {}
    missing = {oid for oid in wanted if oid not in _TYPES}
    while missing:
        found = dict.fromkeys(missing)
        rows |= found | {row[0]: row[1:] for row in _catalogue(connection, missing)}
        nested = {oid for row in rows.values() if row for oid in row[1:3] if oid}
        missing = {oid for oid in nested if oid not in _TYPES and oid not in rows}
    return {oid: _resolved(oid, rows) for oid in wanted}


def _catalogue(
    connection: psycopg.Connection[Any], oids: Iterable[int]
) -> list[tuple[int, str, int, int, str]]:
    # Only true arrays print like arrays: other types (point, name) have a typelem too.
    query = """
        SELECT t.oid::bigint, t.typname,
               CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE 0 END::bigint,
               CASE WHEN t.typtype = 'b' AND t.typoutput = 'pg_catalog.array_out'::regproc
                    THEN t.typelem ELSE 0 END::bigint,
               coalesce(e.typdelim, ',')::text
        FROM pg_catalog.pg_type t LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem
        WHERE t.oid = ANY(%s::bigint[]::oid[])"""
    with connection.cursor(row_factory=tuple_row) as cursor:
        return cursor.execute(query, [sorted(oids)]).fetchall()


def _resolved(oid: int, rows: dict[int, tuple[str, int, int, str] | None]) -> ColumnType:
    if oid in _TYPES:
        return _TYPES[oid]
    row = rows[oid]
    if row is None:
        return ColumnType(oid, "unknown", Shape.TEXT)
    name, base, element, delimiter = row
    if base:
        found = _resolved(base, rows)
        return replace(found, oid=oid, domain_of=found.base)
    if element:
        return ColumnType(oid, name, Shape.ARRAY, _resolved(element, rows), delimiter)
    return ColumnType(oid, name, Shape.TEXT)
