"""A place in the write-ahead log. An int, so that numpy, JSON offsets and comparisons stay cheap."""

from __future__ import annotations

import re

_TEXT = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


class Lsn(int):
    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Lsn:
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError(f"not an LSN: {text!r} (expected something like 0/16B3748)")
        return cls((int(found[1], 16) << 32) + int(found[2], 16))

    def __str__(self) -> str:
        return f"{int(self) >> 32:X}/{int(self) & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn({self})"
