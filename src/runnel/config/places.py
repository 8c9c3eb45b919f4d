"""Where the pipelines and the change log write: no place is another's, nor inside another's.

What comes in: a checked configuration and the document it stands in. What must hold: a sink may clear
its own place of what it never committed, so nothing of anybody else lies under it, whatever links,
`..` or options of a URL the two places are written with.
"""

from __future__ import annotations

import os
import posixpath

from ..errors import UsageError
from .document import Document, dotted
from .models import Config


def refuse_shared_places(config: Config, document: Document) -> None:
    seen: dict[str, str] = {}
    for name, pipeline in config.pipelines.items():
        place = pipeline.sink.place()
        if place is None:
            continue
        where = document.origin(("pipelines", name, "sink"))
        here = f"{where}: {dotted(('pipelines', name, 'sink'))}"
        for other, taken in seen.items():
            if _resolved(place) == _resolved(taken):
                raise UsageError(
                    f"{here}: writes to {_bare(place)}, as pipelines.{other} does",
                    hint="give each pipeline a place of its own",
                )
            if _inside(place, taken) or _inside(taken, place):
                how = "inside" if _inside(place, taken) else "around"
                raise UsageError(
                    f"{here}: writes to {_bare(place)}, {how} pipelines.{other}'s {_bare(taken)}",
                    hint="give each pipeline a place of its own, beside the others and not inside them",
                )
        seen[name] = place
        if _inside(place, config.log.path) or _inside(config.log.path, place):
            raise UsageError(
                f"{here}: {_bare(place)} is where the change log is ({_bare(config.log.path)})",
                hint="write somewhere else, or set log.path",
            )


def _bare(place: str) -> str:
    """Without the options of a URL: they say how to get there, not where it is."""
    return place.partition("?")[0].rstrip("/") if "://" in place else place


def _resolved(place: str) -> str:
    """Two names of one place give the same."""
    if "://" in place:
        scheme, _, rest = _bare(place).partition("://")
        host, _, path = rest.partition("/")
        return f"{scheme.lower()}://{host}{posixpath.normpath('/' + path.lstrip('/'))}".rstrip("/")
    return os.path.realpath(place) if os.path.isabs(place) else place


def _inside(inner: str, outer: str) -> bool:
    inner, outer = _resolved(inner), _resolved(outer)
    return inner == outer or inner.startswith(outer.rstrip("/") + "/")
