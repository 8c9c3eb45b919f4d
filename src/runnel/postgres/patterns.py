"""Which tables a user means: `schema.table` with `*`, a leading `!` excludes, quotes for odd names.

Excludes always win. Inside double quotes `*` and `.` are plain characters and `""` is one quote.
Names are compared as they are stored: no folding of case. `label` is how a table is called everywhere:
in logs, in `status`, in dead letters.

What must hold: no two tables have one label.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import UsageError

_PART = r'("(?:[^"]|"")+"|[^".\s]+)'
_PATTERN = re.compile(rf"(!?)\s*{_PART}\.{_PART}")
_NAME = re.compile(r'("(?:[^"]|"")+"|[^".]+)\.("(?:[^"]|"")+"|[^".]+)')


def label(schema: str, table: str) -> str:
    """What a table is called: `schema.table`, names that hold a dot or a quote in quotes."""
    return f"{_quoted(schema)}.{_quoted(table)}"


def label_of(text: str) -> str:
    """The label of the table that somebody names, with or without quotes."""
    found = _NAME.fullmatch(text.strip())
    return label(*map(_bare, found.groups())) if found else text


def _quoted(part: str) -> str:
    return '"' + part.replace('"', '""') + '"' if "." in part or '"' in part else part


def _bare(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part


@dataclass(frozen=True, slots=True)
class TablePattern:
    text: str
    exclude: bool
    literal: bool
    """Names one table: without `*`."""
    schema: re.Pattern[str]
    table: re.Pattern[str]

    @classmethod
    def parse(cls, text: str) -> TablePattern:
        found = _PATTERN.fullmatch(text.strip())
        if found is None:
            raise UsageError(
                f"{text!r} is not a table pattern",
                hint="write schema.table, e.g. public.orders, public.*, !public.audit_*"
                ' (names with dots or spaces in double quotes: public."odd name")',
            )
        exclude, schema, table = found.groups()
        literal = not exclude and all(part[0] == '"' or "*" not in part for part in (schema, table))
        return cls(text, bool(exclude), literal, _compile(schema), _compile(table))

    def matches(self, schema: str, table: str) -> bool:
        return bool(self.schema.fullmatch(schema) and self.table.fullmatch(table))


def _compile(part: str) -> re.Pattern[str]:
    if part.startswith('"'):
        return re.compile(re.escape(_bare(part)))
    return re.compile(".*".join(re.escape(piece) for piece in part.split("*")), re.DOTALL)


class TablePatterns:
    def __init__(self, patterns: Iterable[str]) -> None:
        parsed = [TablePattern.parse(text) for text in patterns]
        self.excludes: Sequence[TablePattern] = [p for p in parsed if p.exclude]
        self.includes: Sequence[TablePattern] = [p for p in parsed if not p.exclude] or [
            TablePattern.parse("*.*")
        ]

    def match(self, schema: str, table: str) -> TablePattern | None:
        """The pattern that takes this table, a literal one first; None: it is not wanted."""
        if self.excluded(schema, table):
            return None
        found = [p for p in self.includes if p.matches(schema, table)]
        return max(found, key=lambda p: p.literal, default=None)

    def excluded(self, schema: str, table: str) -> bool:
        return any(p.matches(schema, table) for p in self.excludes)

    def literals(self) -> list[TablePattern]:
        return [p for p in self.includes if p.literal]
