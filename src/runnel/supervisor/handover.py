"""The resolved configuration, secrets included, for the children: where they read it, and with what.

What must hold: nothing of it is left behind, however the supervisor ends; a child that is started again
reads the same. On Linux it is a file without a name, in memory, that only the children inherit: it is
gone with the last of them. Elsewhere it is a file for its owner alone, removed at an orderly end.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..config import Config, effective, write_effective


@dataclass(frozen=True, slots=True)
class Handover:
    path: Path
    """For the child's `-c`."""
    descriptors: tuple[int, ...] = ()
    """What the child must inherit, under the same numbers."""


@contextmanager
def hand_over(config: Config) -> Iterator[Handover]:
    if sys.platform == "linux":
        descriptor = os.memfd_create("runnel-config")
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)
            file.write(effective(config).encode())
            file.flush()
            # opened anew by each reader, so each begins at the beginning
            yield Handover(Path(f"/proc/self/fd/{descriptor}"), (descriptor,))
    else:
        with tempfile.TemporaryDirectory(prefix="runnel-") as directory:
            path = Path(directory) / "config.yaml"
            write_effective(config, path)
            yield Handover(path)
