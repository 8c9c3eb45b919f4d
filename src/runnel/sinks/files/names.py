"""Names of what the files sink writes.

Data files are a running number over the whole output, so that names sort in commit order; tables have
a folder each. `_runnel/` holds what is not data: the record, the lock and the stage.
"""

from __future__ import annotations

import re
from functools import lru_cache

import xxhash

OWN = "_runnel"
RECORD = f"{OWN}/position.json"
LOCK = f"{OWN}/lock"
STAGE = f"{OWN}/stage"

MESSAGES = "messages"
"""Folder of logical messages under `layout: table`: a table's folder always has a dot."""

_DATA = re.compile(r"(\d{12,})\.(?:jsonl|csv|parquet)(?:\.gz|\.zst)?")
_LONGEST = 120
"""Bytes of one escaped name: two of them, a dot and room to spare stay below NAME_MAX."""


def suffix(form: str, codec: str) -> str:
    if form == "parquet":
        return ".parquet"
    return "." + form + {"none": "", "gzip": ".gz", "zstd": ".zst"}[codec]


def data_name(folder: str, number: int, ending: str) -> str:
    return f"{folder}/{number:012d}{ending}" if folder else f"{number:012d}{ending}"


def number_of(name: str) -> int | None:
    """The running number of a data file; None for anything else."""
    match = _DATA.fullmatch(name.rpartition("/")[2])
    return int(match[1]) if match else None


@lru_cache(1 << 14)
def folder_of(schema: str, table: str) -> str:
    """The folder of a table: letters, digits, `_` and `-` stand for themselves."""
    return f"{_escape(schema)}.{_escape(table)}"


def _escape(name: str) -> str:
    # A leading underscore would hide the folder from readers that skip names which are not data.
    escaped = "".join(
        c if c.isalnum() or c == "-" or (c == "_" and at) else "".join(f"%{b:02X}" for b in c.encode())
        for at, c in enumerate(name)
    )
    if len(escaped.encode()) <= _LONGEST:
        return escaped
    short = escaped.encode()[:90].decode(errors="ignore").rstrip("%0123456789ABCDEF")
    return f"{short}~{xxhash.xxh64_hexdigest(name.encode())}"
