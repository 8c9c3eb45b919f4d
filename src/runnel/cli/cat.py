"""`runnel cat PATH [--follow]`: what a files sink has committed, as JSON lines: each change once,
but for what a replay delivered again.

At any moment: while a writer runs, after a crash, with files open. A plain reader of the files needs
a clean stop or a later start first.
"""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from ..errors import RunnelError

_LOOK = 0.2
_LOOK_REMOTE = 2.0


def cat(
    path: Annotated[str, typer.Argument(metavar="PATH", help="The directory (or URL) of a files sink.")],
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on with what is committed later, until interrupted.")
    ] = False,
) -> None:
    from pydantic import ValidationError

    from ..config.document import Document
    from ..config.problems import usage_error
    from ..sinks.files.reading import Committed, lines
    from ..sinks.files.settings import FilesSettings
    from ..sinks.files.sink import place_of

    try:
        settings = FilesSettings(path=path)
    except ValidationError as error:
        raise usage_error(error, Document()) from None
    place = place_of(settings)
    committed = Committed(place)
    while True:
        for span in committed.new():
            for piece in lines(place, span):
                sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        if not follow:
            break
        time.sleep(_LOOK_REMOTE if settings.remote else _LOOK)
    if committed.record is None:
        raise RunnelError(
            f"{place.root} has no _runnel/position.json: no files sink has written there",
            hint="name the `path` of a files sink, as in runnel.yaml",
        )
