"""Postgres' text of an array to JSON: `{1,NULL,"a b"}` to `[1,null,"a b"]`, one value at a time.

Only distinct values come here, and only those that need it: arrays of plain numbers are translated
in bulk (see `values`). An array with explicit bounds, `[2:4]={…}`, stays text: JSON cannot say where
an array begins.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache

from ..postgres.types import ColumnType, Shape

_NOT_JSON_NUMBERS = frozenset(("NaN", "Infinity", "-Infinity"))


quote = json.JSONEncoder(ensure_ascii=False).encode
"""A JSON string. (`json.dumps` with this option makes an encoder for each call.)"""


def value_to_json(text: str, type: ColumnType) -> str:
    """One value by the rules of the default JSON."""
    if type.shape is Shape.NUMBER:
        return quote(text) if text in _NOT_JSON_NUMBERS else text
    if type.shape is Shape.BOOLEAN:
        return "true" if text == "t" else "false"
    if type.shape is Shape.JSON:
        return text.replace("\n", " ").replace("\r", " ")
    if type.shape is Shape.ARRAY and type.element is not None:
        return array_to_json(text, type.element, type.delimiter)
    return quote(text)


@cache
def _tokens(delimiter: str) -> Callable[[str], list[tuple[str, str, str]]]:
    stop = re.escape(delimiter)
    # A brace or delimiter, a quoted element, or a bare one.
    return re.compile(rf'([{{}}{stop}])|"((?:[^"\\]|\\.)*)"|([^{{}}{stop}"]+)', re.DOTALL).findall


_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def array_to_json(text: str, element: ColumnType, delimiter: str) -> str:
    if not text.startswith("{"):
        return quote(text)
    if element.shape is Shape.TEXT and '"' not in text and text.isprintable() and "{" not in text[1:]:
        # Bare elements only, nothing to escape: by far the most arrays of text.
        items = text[1:-1].replace(delimiter, '","')
        return f'["{items}"]'.replace('"NULL"', "null") if items else "[]"
    out: list[str] = []
    for mark, inner, bare in _tokens(delimiter)(text):
        if mark == "{":
            out.append("[")
        elif mark == "}":
            out.append("]")
        elif mark:
            out.append(",")
        elif bare:
            out.append("null" if bare == "NULL" else value_to_json(bare, element))
        else:
            out.append(value_to_json(_ESCAPED.sub(r"\1", inner), element))
    return "".join(out)
