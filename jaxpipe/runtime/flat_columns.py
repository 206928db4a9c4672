"""Rings that hold the values of unlike programs: flat, one column for every dtype.

The stages of a sequential model read and leave values of any shapes. In a slot, the values of one
dtype lie one behind the other, and a column is as wide as the widest program needs:

    stage 0   f32[8,4]  f32[4,4]  i32[8]        f32  |0 ... 31|32 ... 47|       |     i32 |0 . 7|
    stage 1   f32[16,4]                         f32  |0 ................... 63| |     i32 |     |

A flat slice is a value in the order of its dims, so a reshape costs nothing.
"""

import dataclasses
import math
from collections.abc import Sequence

import jax

from jaxpipe.runtime import buffers

Shapes = Sequence[jax.ShapeDtypeStruct]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlatColumns:
    """Where the values of each program lie.

    Attributes:
        shapes: The shape of every column, `[width]`, by the names of their dtypes.
        values: For every program, the shapes of its values.
        places: For every program and value, the column and the first element in it.
    """

    shapes: tuple[jax.ShapeDtypeStruct, ...]
    values: tuple[tuple[jax.ShapeDtypeStruct, ...], ...]
    places: tuple[tuple[tuple[int, int], ...], ...]

    @classmethod
    def of(cls, programs: Sequence[Shapes]) -> "FlatColumns":
        """The columns for the values of some programs."""
        dtypes = {value.dtype for values in programs for value in values}
        numbers = {dtype: number for number, dtype in enumerate(sorted(dtypes, key=str))}
        widths = dict.fromkeys(numbers, 0)
        places = []
        for values in programs:
            used = dict.fromkeys(numbers, 0)
            mine = []
            for value in values:
                mine.append((numbers[value.dtype], used[value.dtype]))
                used[value.dtype] += math.prod(value.shape)
            widths = {dtype: max(widths[dtype], used[dtype]) for dtype in numbers}
            places.append(tuple(mine))
        return cls(
            shapes=tuple(jax.ShapeDtypeStruct((widths[dtype],), dtype) for dtype in numbers),
            values=tuple(tuple(values) for values in programs),
            places=tuple(places),
        )

    def read(
        self, rings: Sequence[jax.Array], program: int, *slot: jax.Array | int
    ) -> list[jax.Array]:
        """The values of a program in a slot of rings `[*slots, width]`."""
        return self.read_some(rings, program, range(len(self.values[program])), *slot)

    def read_some(
        self,
        rings: Sequence[jax.Array],
        program: int,
        which: Sequence[int],
        *slot: jax.Array | int,
    ) -> list[jax.Array]:
        """Some of the values of a program in a slot, by their numbers."""
        found = []
        for number in which:
            shape = self.values[program][number].shape
            column, first = self.places[program][number]
            found.append(buffers.read_flat(rings[column], shape, first, *slot))
        return found

    def write(
        self, rings: Sequence[jax.Array], values: list, program: int, *slot: jax.Array | int
    ) -> list:
        """The rings with the values of a program in a slot."""
        found = list(rings)
        for (column, first), value in zip(self.places[program], values, strict=True):
            found[column] = buffers.write_flat(found[column], value, first, *slot)
        return found

    def add_some(
        self,
        rings: Sequence[jax.Array],
        values: list,
        program: int,
        which: Sequence[int],
        *slot: jax.Array | int,
    ) -> list:
        """The rings with values added to some of those of a program, in the dtype of the rings."""
        found = list(rings)
        for number, value in zip(which, values, strict=True):
            column, first = self.places[program][number]
            old = buffers.read_flat(found[column], value.shape, first, *slot)
            total = old + value.astype(old.dtype)
            found[column] = buffers.write_flat(found[column], total, first, *slot)
        return found

    @property
    def padding(self) -> float:
        """The share of the columns, in bytes, that an average program leaves empty."""
        room = sum(_bytes(shape) for shape in self.shapes) * len(self.values)
        used = sum(_bytes(value) for values in self.values for value in values)
        return 1 - used / room if room else 0.0


def _bytes(value: jax.ShapeDtypeStruct) -> int:
    return math.prod(value.shape) * jax.dtypes.canonicalize_dtype(value.dtype).itemsize
