"""From a file, the environment and flags to a checked `Config`.

Later wins: defaults, the file, `RUNNEL_*` variables, flags. A file with what `effective` gives
is the result of all that, for a child process, and is taken as it stands: its values are not expanded
again (a password may contain `${`) and the child's environment does not override a flag.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..errors import UsageError
from ..settings import REVEAL, Settings
from .document import Document, read_document
from .models import Config, Log, Source, State
from .places import refuse_shared_places
from .problems import usage_error

DEFAULT_FILE = Path("runnel.yaml")
_EFFECTIVE = "# Runnel's resolved configuration for its own child processes. It holds secrets.\n"
_SECTIONS: dict[str, type[Settings]] = {"source": Source, "state": State, "log": Log}


def load(
    path: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    default: Path | None = DEFAULT_FILE,
) -> Config:
    """`overrides`: dotted place to value, from flags (`{"source.url": …}`). `path` None: the
    `default` file if it exists; `default` None: no file at all."""
    environ = os.environ if environ is None else environ
    document = Document()
    if path is None and default is not None and default.exists():
        path = default
    resolved = path is not None and _is_effective(path)
    if path is not None:
        document = read_document(path, None if resolved else environ)
    if not resolved:
        for place, variable in _variables(environ).items():
            document.put(place, environ[variable], variable)
    for dots, value in (overrides or {}).items():
        document.put(tuple(dots.split(".")), value, "command line")
    if path is None and "source" not in document.values:
        raise UsageError(
            f"there is no configuration: {default or DEFAULT_FILE} does not exist here",
            hint="write one, name one with -c FILE, or use runnel run --source URL --sink TYPE,key=value",
        )
    try:
        config = Config.model_validate(document.values)
    except ValidationError as error:
        raise usage_error(error, document) from None
    refuse_shared_places(config, document)
    return config


def effective(config: Config) -> str:
    """For the child processes of a supervisor: everything resolved, secrets included."""
    content = json.dumps(config.model_dump(mode="json", by_alias=True, context=REVEAL), indent=1)
    return f"{_EFFECTIVE}{content}\n"


def write_effective(config: Config, path: Path) -> None:
    """As a file, mode 0600."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(effective(config))
    os.replace(temporary, path)


def _is_effective(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_EFFECTIVE)) == _EFFECTIVE.encode()
    except OSError:
        return False


def _variables(environ: Mapping[str, str]) -> dict[tuple[str, ...], str]:
    """`RUNNEL_SOURCE_URL` overrides source.url; `RUNNEL_LOG` (the log's path, its other settings stay) and
    `RUNNEL_SPARK_MASTER` too."""
    known: dict[str, tuple[str, ...]] = {
        "RUNNEL_LOG": ("log", "path"),
        "RUNNEL_SPARK_MASTER": ("spark", "master"),
    }
    for section, model in _SECTIONS.items():
        for field in model.model_fields:
            known[f"RUNNEL_{section}_{field}".upper()] = (section, field)
    for name in environ:
        section, _, field = name.removeprefix("RUNNEL_").lower().partition("_")
        if not name.startswith("RUNNEL_") or section not in _SECTIONS or name in known:
            continue
        # Others may set variables of this shape (Kubernetes names a service's port so): only what looks
        # like a slip of the pen is refused.
        near = difflib.get_close_matches(field, list(_SECTIONS[section].model_fields), n=1, cutoff=0.66)
        if near:
            raise UsageError(
                f"the environment variable {name} sets nothing",
                hint="did you mean " + f"RUNNEL_{section}_{near[0]}?".upper(),
            )
    return {place: name for name, place in known.items() if name in environ}
