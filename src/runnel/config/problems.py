"""Turns what pydantic found into one sentence and one remedy, with the file's line and the field.

Never repeats a value that could be a secret: only values of fields with a fixed set of choices, and
keys, are quoted.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ..errors import UsageError
from ..sinks.registry import SINKS
from .document import Document, Place, dotted
from .models import Config

PLANNED = {"filter", "transform", "route", "inject"}
"""Keys of the documented configuration that this version does not have yet."""

_EXPECTED = {
    "bool": "write true or false",
    "int": "write a whole number",
    "string": "write text; in quotes if it looks like something else",
    "dict": "write a mapping: key: value pairs, indented below it",
    "model": "write a mapping: key: value pairs, indented below it",
    "tuple": 'write a list, e.g. ["public.*"]',
    "list": 'write a list, e.g. ["public.*"]',
}


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'url'?` or nothing."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {found[0]!r}?" if found else ""


def usage_error(error: ValidationError, document: Document) -> UsageError:
    details = error.errors(include_url=False)
    unknown = {_place(one)[:-1] for one in details if one["type"] == "extra_forbidden"}
    # what is missing may be what a misspelt key beside it was to be
    details.sort(
        key=lambda one: (
            one["type"] == "missing" and _place(one)[:-1] in unknown,
            _line(document.origin(_place(one))),
        )
    )
    message, hint = _explain(details[0], document)
    if len(details) > 1:
        hint += f" (then {len(details) - 1} more to mend)"
    return UsageError(message, hint=hint)


def _explain(detail: ErrorDetails, document: Document) -> tuple[str, str]:
    place, sink = _place(detail), _sink(detail)
    kind, context, given = detail["type"], detail.get("ctx", {}), detail.get("input")
    what, hint = detail["msg"], ""
    key = str(place[-1]) if place else ""
    if kind == "extra_forbidden":
        known = list(_fields(place[:-1], sink))
        if key in PLANNED and len(place) == 3:
            what, hint = "not available in this version", "leave it out"
        else:
            what, hint = "unknown key", f"allowed here: {', '.join(known)}{nearest(key, known)}"
    elif kind == "missing":
        sentence = _sentence(place, sink)
        what, hint = "missing", f"add {key}: …" + (f" ({sentence})" if sentence else "")
    elif kind == "literal_error":
        allowed = [str(one) for one in _choices(place, sink)]
        what = f"{given!r} is not allowed"
        hint = f"allowed: {', '.join(allowed)}{nearest(str(given), allowed)}"
    elif kind == "union_tag_invalid":
        tag = str(context.get("tag", ""))
        place = (*place, "type")
        what, hint = f"{tag!r} is not a sink", f"allowed: {', '.join(SINKS)}{nearest(tag, SINKS)}"
    elif kind == "union_tag_not_found":
        what, hint = "does not say which sink", f"add type: one of {', '.join(SINKS)}"
    elif kind == "runnel":
        hint = str(context["hint"])
        place = place if context["at"] is None else (*place, context["at"])
    elif kind == "greater_than_equal":
        what, hint = f"{given} is too small", f"write at least {context['ge']}"
    elif kind == "value_error":
        what = str(context.get("error", what))
        hint = "see the configuration reference for this field"
        problem, colon, remedy = what.rpartition(": ")
        if colon:  # a sink's own validator says both in one sentence
            what, hint = problem, remedy
        if what.startswith("expected "):
            what, hint = f"{_quoted(given)} cannot be read", "write " + what.removeprefix("expected ")
    else:
        stem = kind.removesuffix("_type").removesuffix("_parsing").removesuffix("_attributes")
        what = what[0].lower() + what[1:]
        hint = _EXPECTED.get(
            stem, _sentence(place, sink) or "see the configuration reference for this field"
        )
        if stem in {"model", "dict"} and key == "sink" and isinstance(given, str):
            hint = f"write sink: {{type: {given if given in SINKS else next(iter(SINKS))}, …}}"
    origin = document.origin(place)
    return ": ".join(part for part in (origin, dotted(place), what) if part), hint


def _quoted(value: Any) -> str:
    return repr(value) if isinstance(value, str | int | float) else "this"


def _place(detail: ErrorDetails) -> Place:
    """Where it is in the file: without the tag pydantic puts between a sink and its fields."""
    out: list[str | int] = []
    for part in detail["loc"]:
        if out and out[-1] == "sink" and len(out) == 3 and part in SINKS:
            continue
        out.append(part)
    return tuple(out)


def _sink(detail: ErrorDetails) -> str | None:
    """The type of the sink it is about, if one was chosen."""
    loc = detail["loc"]
    return str(loc[3]) if loc[2:3] == ("sink",) and len(loc) > 3 and loc[3] in SINKS else None


def _line(origin: str) -> tuple[int, int]:
    line = origin.rpartition(":")[2]
    return (0, int(line)) if line.isdigit() else (1, 0)


def _model(place: Place) -> type[BaseModel] | None:
    """The model whose fields stand at `place`; a sink's is the registry's matter."""
    match place:
        case ():
            return Config
        case ("pipelines", _):
            return _field_model(Config, "pipelines")
        case ("pipelines", _, "batch"):
            pipeline = _field_model(Config, "pipelines")
            return _field_model(pipeline, "batch") if pipeline else None
        case (str(section),):
            return _field_model(Config, section)
    return None


def _field_model(model: type[BaseModel], name: str) -> type[BaseModel] | None:
    field = model.model_fields.get(name)
    for one in (field.annotation, *get_args(field.annotation)) if field else ():
        if isinstance(one, type) and issubclass(one, BaseModel):
            return one
    return None


def _fields(place: Place, sink: str | None) -> dict[str, Any]:
    inside = sink is not None and place[:1] == ("pipelines",) and place[2:] == ("sink",)
    model = SINKS[sink].settings if sink is not None and inside else _model(place)
    return {field.alias or name: field for name, field in model.model_fields.items()} if model else {}


def _sentence(place: Place, sink: str | None) -> str:
    field = _fields(place[:-1], sink).get(str(place[-1])) if place else None
    return str(field.description).split(": ")[0].rstrip(".").lower() if field and field.description else ""


def _choices(place: Place, sink: str | None) -> list[Any]:
    field = _fields(place[:-1], sink).get(str(place[-1])) if place else None
    return list(get_args(field.annotation)) if field else []
