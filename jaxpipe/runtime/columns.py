"""Rings that hold the values of several programs.

The programs of a microbatch's slices leave values of different shapes, and now and then different
numbers of them. They share rings all the same: values of one dtype and rank go into the same
column, in order, and a column is as large in every dim as its largest value. A smaller value lies
in the front corner of its slot.

    slice 0   f32[2,3,8]   f32[2,3,4]             column 0   f32[2,3,8]
    slice 1   f32[2,2,8]   f32[2,2,6]   i32[2]    column 1   f32[2,3,6]    column 2   i32[2]
"""

import dataclasses
from collections import Counter
from collections.abc import Sequence

import jax

from jaxpipe.runtime import buffers

Shapes = Sequence[jax.ShapeDtypeStruct]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Columns:
    """Where the values of each program go.

    Attributes:
        shapes: The shape of every column.
        values: For every program, the shapes of its values.
        places: For every program, the column of each of its values.
    """

    shapes: tuple[jax.ShapeDtypeStruct, ...]
    values: tuple[tuple[jax.ShapeDtypeStruct, ...], ...]
    places: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, programs: Sequence[Shapes]) -> "Columns":
        """The columns for the values of some programs."""
        numbers: dict[tuple, int] = {}
        shapes: list[jax.ShapeDtypeStruct] = []
        places = []
        for values in programs:
            seen: Counter = Counter()
            mine = []
            for value in values:
                kind = (value.dtype, len(value.shape))
                number = numbers.setdefault((*kind, seen[kind]), len(shapes))
                seen[kind] += 1
                mine.append(number)
                if number == len(shapes):
                    shapes.append(value)
                else:
                    shapes[number] = larger(shapes[number], value)
            places.append(tuple(mine))
        return cls(
            shapes=tuple(shapes),
            values=tuple(tuple(values) for values in programs),
            places=tuple(places),
        )

    def read(self, rings: list, program: int, *slot: jax.Array | int) -> list[jax.Array]:
        """The values of a program in a slot."""
        found = [rings[place] for place in self.places[program]]
        return buffers.read(found, *slot, like=list(self.values[program]))

    def write(self, rings: list, values: list, program: int, *slot: jax.Array | int) -> list:
        """The rings with the values of a program in a slot."""
        found = list(rings)
        for place, value in zip(self.places[program], values, strict=True):
            found[place] = buffers.write(found[place], value, *slot)
        return found


def larger(one: jax.ShapeDtypeStruct, other: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """The least shape that holds both, which have one dtype and rank."""
    shape = tuple(map(max, one.shape, other.shape))
    return jax.ShapeDtypeStruct(shape, one.dtype)
