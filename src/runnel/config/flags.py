"""A sink on the command line: `stdout`, `files,path=out,format=csv`, `file:///data/out?format=csv`."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from ..errors import UsageError
from ..sinks.registry import SINKS
from .problems import nearest

_PAIR = re.compile(r',\s*([A-Za-z_]\w*)\s*=\s*("(?:[^"]|"")*"|[^,]*)')


def sink_from_flag(text: str) -> dict[str, Any]:
    """A sink's settings as they would stand in the file; `load` checks them."""
    kind, comma, _ = text.partition(",")
    if "://" in kind:
        return _from_url(text)
    kind = kind.strip()
    if kind not in SINKS:
        raise UsageError(
            f"--sink: {kind!r} is not a sink", hint=f"allowed: {', '.join(SINKS)}{nearest(kind, SINKS)}"
        )
    settings: dict[str, Any] = {"type": kind}
    rest = text[len(text.partition(",")[0]) :] if comma else ""
    while rest:
        match = _PAIR.match(rest)
        if match is None:
            raise UsageError(
                f"--sink: cannot read {rest.lstrip(', ')!r}",
                hint='write type,key=value,key=value; a value with a comma in double quotes: path="a,b"',
            )
        value = match[2].strip()
        settings[match[1]] = value[1:-1].replace('""', '"') if value.startswith('"') else value
        rest = rest[match.end() :]
    return settings


def _key(pair: str) -> str:
    return pair.partition("=")[0]


def _fields_of(kind: str) -> set[str]:
    return set(SINKS[kind].settings.model_fields) - {"type", "path"}


def _from_url(text: str) -> dict[str, Any]:
    url = urlsplit(text)
    for kind, sink in SINKS.items():
        if url.scheme in sink.schemes:
            # How a URL maps to settings is the same for all: the part before ? is where, the rest are keys;
            # what is no key of the sink's is an option of the object store's, and stays in the URL.
            path, _, query = text.partition("?")
            store = url.scheme != "file"
            options = [
                pair for pair in query.split("&") if pair and store and _key(pair) not in _fields_of(kind)
            ]
            keys = [pair for pair in query.split("&") if pair and pair not in options]
            path += "?" + "&".join(options) if options else ""
            return {"type": kind, "path": path, **dict(parse_qsl("&".join(keys)))}
    schemes = [scheme for sink in SINKS.values() for scheme in sink.schemes]
    raise UsageError(
        f"--sink: no sink understands {url.scheme}:// URLs",
        hint=f"URLs: {', '.join(f'{scheme}://' for scheme in schemes)}; or type,key=value with a type of"
        f" {', '.join(SINKS)}",
    )
