"""A place in the write-ahead log. An int, so that numpy, JSON offsets and comparisons stay cheap."""

from __future__ import annotations


class Lsn(int):
    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Lsn:
        high, slash, low = text.partition("/")
        if not slash:
            raise ValueError(f"not an LSN: {text!r} (expected something like 0/16B3748)")
        return cls((int(high, 16) << 32) + int(low, 16))

    def __str__(self) -> str:
        return f"{int(self) >> 32:X}/{int(self) & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn({self})"
