"""One binary array over one buffer: everything that the output is put together from.

The buffer is [fixed texts | the window's wire bytes | additions]: fixed texts stand in the room that
the log leaves before the first frame, additions behind the last one, so that nothing is copied; where
they do not fit, a larger buffer is made. An *element* is named by the index of its start in `offsets`;
its end is the next number. Elements that need not touch (values) are followed by a gap, an element
that nobody picks. To give a value another text, its two offsets are changed: whoever picks it needs
no other index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..changes.block import I64, U8, Tuples, Window

CONSTANTS = ("true", "false", '"NaN"', '"Infinity"', '"-Infinity"')
_LARGE = 1 << 27
"""From here on offsets have 64 bits: escaping can make six bytes of one."""


class Space:
    TEXT = 1
    """Element of the first fixed text; the others follow."""

    def __init__(
        self,
        window: Window,
        texts: Sequence[bytes],
        lengths: npt.NDArray[np.int32],
        values: int,
        others: int,
    ) -> None:
        """Room for so many values and other offsets behind those of the fixed texts."""
        self.window = window
        self.begin, self.end = window.used
        constants = "".join(CONSTANTS).encode()
        self.texts = np.frombuffer(b"".join([constants, *texts]), np.uint8)
        large = self.end + len(self.texts) >= _LARGE
        self._type = pa.large_binary() if large else pa.binary()
        dtype: Any = np.int64 if large else np.int32
        self._added: list[U8] = []
        self._next = self.end
        in_front = len(self.texts) <= self.begin and window.buffer.flags.writeable
        place = 0 if in_front else self.add(self.texts)
        self._in_front = in_front
        # Arrow wants the first offset to be the smallest and the last one the largest: both are gaps.
        self.offsets = np.empty(1 + len(lengths) + 1 + 2 * values + others + 1, dtype)
        self.offsets[:2] = 0
        self._used = len(lengths) + 2
        np.cumsum(lengths, out=self.offsets[2 : self._used])
        self.offsets[1 : self._used] += place + len(constants)
        self.values = self._used
        """Element of the first value; each second one is another."""
        self.codes: npt.NDArray[np.uint16] = np.empty(values, np.uint16)
        """Per value: what has to be done with it (see `values`)."""
        sizes = np.cumsum([0, *(len(text) for text in CONSTANTS)]) + place
        self.constant = {text: (int(sizes[i]), int(sizes[i + 1])) for i, text in enumerate(CONSTANTS)}

    def add(self, data: U8) -> int:
        """Bytes behind the window's own; their place."""
        place = self._next
        self._added.append(data)
        self._next += len(data)
        return place

    def add_tuples(self, tuples: Tuples, codes: npt.NDArray[np.uint16]) -> int:
        """First element: value of column k, row r is element first + 2 * (k * rows + r). `codes`: per
        column, and row or one for all. Tuples come before anything else."""
        first, count = self._used, tuples.places.size
        self.offsets[first : first + count].reshape(tuples.places.shape)[...] = tuples.places
        known = (first - self.values) // 2
        self.codes[known : known + count // 2].reshape(tuples.kinds.shape)[...] = codes
        self._used += count
        return first

    def add_pairs(self, start: I64, end: I64) -> int:
        """Elements with gaps; element i is first + 2 * i."""
        first = self._used
        self._used += 2 * len(start)
        self.offsets[first : self._used : 2] = start
        self.offsets[first + 1 : self._used : 2] = end
        return first

    def add_run(self, offsets: npt.NDArray[Any], place: int) -> int:
        """Elements that touch; element i is first + i."""
        first = self._used
        self._used += len(offsets)
        self.offsets[first : self._used] = offsets
        self.offsets[first : self._used] += place
        return first

    def buffer(self) -> U8:
        """The buffer with everything added so far in place."""
        window, out = self.window, self.window.buffer
        if self._next > len(out) or not out.flags.writeable:
            out = np.empty(self._next + self._next // 8, np.uint8)
            out[self.begin : self.end] = window.buffer[self.begin : self.end]
        if self._in_front:
            out[: len(self.texts)] = self.texts
        place = self.end
        for data in self._added:
            out[place : place + len(data)] = data
            place += len(data)
        return out

    def _array(self, buffer: U8, end: int) -> pa.Array:
        offsets = self.offsets[: self._used + 1]
        offsets[-1] = end
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(buffer)]
        return pa.Array.from_buffers(self._type, len(offsets) - 1, buffers)

    def gather(self, elements: npt.NDArray[Any]) -> Gathered:
        """Values as they stand in the window, one after another."""
        return Gathered(
            pc.take(self._array(self.window.buffer, self.end), pa.array(elements), boundscheck=False)
        )

    def put_together(self, elements: npt.NDArray[Any]) -> Gathered:
        """The output: all elements, one after another."""
        return Gathered(
            pc.take(self._array(self.buffer(), self._next), pa.array(elements), boundscheck=False)
        )

    def replace(self, elements: npt.NDArray[Any], offsets: npt.NDArray[Any], data: U8) -> None:
        """Element i now reads data[offsets[i]:offsets[i + 1]]."""
        place = self.add(data)
        self.offsets[elements] = offsets[:-1]
        self.offsets[elements] += place
        self.offsets[elements + 1] = offsets[1:]
        self.offsets[elements + 1] += place


class Gathered:
    """A binary array, its offsets and its bytes."""

    def __init__(self, array: pa.Array) -> None:
        self.array = array
        dtype: Any = np.int64 if pa.types.is_large_binary(array.type) else np.int32
        self.offsets: npt.NDArray[Any] = np.frombuffer(array.buffers()[1], dtype)[
            array.offset : array.offset + len(array) + 1
        ]
        data = array.buffers()[2]
        self.data: U8 = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
        self.bytes: U8 = self.data[int(self.offsets[0]) : int(self.offsets[-1])]

    def view(self) -> memoryview:
        return memoryview(self.bytes)  # type: ignore[arg-type]

    @property
    def relative(self) -> npt.NDArray[Any]:
        """Offsets into `bytes`."""
        out: npt.NDArray[Any] = self.offsets - self.offsets[0]
        return out
