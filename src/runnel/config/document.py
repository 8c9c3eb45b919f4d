"""A YAML file as plain values, each with the line it stands on.

`${VAR}` and `${VAR:-default}` are expanded in every value (`$${` is a literal `${`). What must hold:
whatever is wrong with the text is a `UsageError` that names the file's line.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq, TaggedScalar
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from ..errors import UsageError

Place = tuple[str | int, ...]

_VARIABLE = re.compile(
    r"\$\$\{|\$\{(?:(?P<name>[A-Za-z_]\w*)(?::-(?P<default>[^}]*))?\}|(?P<bad>[^}]*\}?))"
)


@dataclass(slots=True)
class Document:
    """Values, and for each place in them where it came from: `runnel.yaml:7`, `RUNNEL_SOURCE_URL`."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[Place, str] = field(default_factory=dict)

    def origin(self, place: Place) -> str:
        """Of the nearest enclosing thing that was written somewhere."""
        for length in range(len(place), -1, -1):
            if place[:length] in self.origins:
                return self.origins[place[:length]]
        return ""

    def put(self, place: Place, value: Any, origin: str) -> None:
        """Override one value, keeping the other keys of the mappings around it."""
        values: dict[str, Any] = self.values
        for key in place[:-1]:
            inner = values.get(str(key))
            if isinstance(inner, str) and key == "log":  # a plain string is its path
                inner = {"path": inner}
            values[str(key)] = inner if isinstance(inner, dict) else {}
            values = values[str(key)]
        values[str(place[-1])] = value
        for old in [known for known in self.origins if known[: len(place)] == place]:
            del self.origins[old]
        self.origins[place] = origin


def read_document(path: Path, environ: Mapping[str, str] | None) -> Document:
    """`environ` None: take the text as it stands, without expanding anything."""
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise UsageError(
            f"{path}: no such configuration file",
            hint="check the name after -c, or use runnel run --source URL --sink TYPE,key=value",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(
            f"{path}: cannot be read: {reason}", hint="check the path and its permissions"
        ) from None
    try:
        root = YAML(typ="rt").load(text)
    except MarkedYAMLError as error:
        raise _syntax(path, error, text) from None
    except YAMLError as error:
        raise UsageError(
            f"{path}: not valid YAML: {error}", hint="check the file's encoding and text"
        ) from None
    document = Document()
    document.origins[()] = str(path)
    if root is None:
        return document
    if not isinstance(root, CommentedMap):
        raise UsageError(
            f"{path}:1: expected a mapping of sections, found {_kind(root)}",
            hint="begin with a line such as source: {url: postgresql://me@localhost/shop}",
        )
    document.values = _plain(root, (), f"{path}", 1, document, environ)
    return document


def _plain(
    node: Any, place: Place, path: str, line: int, document: Document, environ: Mapping[str, str] | None
) -> Any:
    document.origins[place] = f"{path}:{line}"
    if isinstance(node, TaggedScalar):
        raise UsageError(
            f"{path}:{line}: {dotted(place)}: a value that begins with ! must be quoted",
            hint=f'write "{node.tag.value}{node.value or ""}" with the quotes',
        )
    if isinstance(node, CommentedMap):
        out: dict[str, Any] = {}
        for key, value in node.items():
            if not isinstance(key, str):
                raise UsageError(
                    f"{path}:{line}: {dotted((*place, str(key)))}: a key must be text, found {_kind(key)}",
                    hint=f'write "{key}" with the quotes',
                )
            at = node.lc.data.get(key) if node.lc.data else None
            out[str(key)] = _plain(
                value, (*place, str(key)), path, at[0] + 1 if at else line, document, environ
            )
        return out
    if isinstance(node, CommentedSeq):
        lines = node.lc.data or {}
        return [
            _plain(item, (*place, i), path, lines[i][0] + 1 if i in lines else line, document, environ)
            for i, item in enumerate(node)
        ]
    if isinstance(node, str):
        return str(node) if environ is None else _expand(str(node), place, f"{path}:{line}", environ)
    if isinstance(node, datetime.date | datetime.datetime):
        return node.isoformat()
    if isinstance(node, bool) or node is None:
        return node
    if isinstance(node, int):
        return int(node)
    return float(node) if isinstance(node, float) else node


def _expand(text: str, place: Place, origin: str, environ: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        if match["bad"] is not None:
            raise UsageError(
                f"{origin}: {dotted(place)}: ${{…}} does not hold the name of a variable",
                hint="write ${NAME} or ${NAME:-default}; a literal ${ is written $${",
            )
        name, default = match["name"], match["default"]
        found = environ.get(name)
        if default is not None:
            return found or default
        if found is None:
            raise UsageError(
                f"{origin}: {dotted(place)}: the environment variable {name} is not set",
                hint=f"export {name}=…, or write ${{{name}:-default}}",
            )
        return found

    return _VARIABLE.sub(value, text)


def _syntax(path: Path, error: MarkedYAMLError, text: str) -> UsageError:
    mark = error.problem_mark or error.context_mark
    line = (mark.line if mark else 0) + 1
    problem = " ".join((error.problem or error.context or "cannot be read").split())
    written = text.splitlines()[line - 1].strip() if line <= len(text.splitlines()) else ""
    hint = "check the indentation, and that the colon after a key is followed by a space"
    if "duplicate key" in problem:
        problem = problem.partition(" with value")[0].replace(
            "found duplicate key", "this key stands twice:"
        )
        hint = "keep one of the two"
    elif "alias" in problem or re.search(r"(^|[\s\[,-])\*", written):
        hint = 'a value that begins with * must be quoted: "*.*"'
    elif "\\t" in problem or "'\\t'" in problem or "\t" in written:
        hint = "YAML is indented with spaces, not tabs"
    return UsageError(f"{path}:{line}: not valid YAML: {problem}", hint=hint)


def dotted(place: Place) -> str:
    """`pipelines.copy.sink`, `source.tables[1]`."""
    out = ""
    for key in place:
        out += f"[{key}]" if isinstance(key, int) else f".{key}" if out else str(key)
    return out


def _kind(value: Any) -> str:
    if isinstance(value, list):
        return "a list"
    return {str: "text", bool: "true or false", type(None): "nothing"}.get(type(value), "a number")
