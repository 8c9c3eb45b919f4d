"""What the commands share that look at or change an existing subscription: its state, a pipeline's name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from ..config import Config
from ..progress.state import State

PipelineName = Annotated[str, typer.Argument(metavar="PIPELINE", help="Its name, as `status` shows it.")]


@contextmanager
def known_state(config: Config) -> Iterator[State]:
    """The state of the configured subscription; an error that says how to make it if there is none."""
    with State.connect(config.state_url, config.source.name) as state:
        state.known()
        yield state
