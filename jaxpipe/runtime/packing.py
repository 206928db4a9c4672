"""The parameters of unlike layers in pipeline layout.

Arrays that lie on all devices of a pipeline have one shape, and the stages of a sequential model
have parameters of many. So those of a stage are laid flat, one array for every dtype, as wide as
the stage with most of them:

    layer order      {"conv": {"kernel": [3, 3, 1, 8]}, "dense": {"kernel": [72, 10], "bias": [10]}}
    pipeline layout  {"float32": [num_devices, num_chunks, 1, width]}

What a stage leaves empty holds zeros, has gradient zero, and adds nothing to a norm: optimizers
that treat every element alike, such as Adam and SGD, work on this layout as on the other one.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxpipe.runtime.flat_columns import FlatColumns
from jaxpipe.runtime.model import Layer, PyTree


@dataclasses.dataclass(frozen=True, kw_only=True)
class Packing:
    """Which layers a stage has, and where their parameters lie in its flat arrays.

    Attributes:
        layers: The layers of the model.
        layers_per_stage: How many of them every stage has, in model order.
    """

    layers: tuple[Layer, ...]
    layers_per_stage: tuple[int, ...]

    @property
    def num_stages(self) -> int:
        """Number of stages."""
        return len(self.layers_per_stage)

    @functools.cached_property
    def bounds(self) -> tuple[int, ...]:
        """The first layer of every stage, and the end."""
        return tuple(itertools.accumulate(self.layers_per_stage, initial=0))

    def layers_of(self, stage: int) -> range:
        """The numbers of the layers of a stage."""
        return range(self.bounds[stage], self.bounds[stage + 1])

    @functools.cached_property
    def columns(self) -> FlatColumns:
        """Where the parameters of every stage lie."""
        return FlatColumns.of([self._leaves(stage) for stage in range(self.num_stages)])

    def leaves_of(self, layer: int) -> range:
        """Which of the parameters of its stage are those of a layer."""
        stage = int(np.searchsorted(self.bounds, layer, side="right")) - 1
        counts = [_count(self.layers[each]) for each in range(self.bounds[stage], layer + 1)]
        return range(sum(counts[:-1]), sum(counts))

    def params_of(
        self, packed: Sequence[jax.Array], stage: int, layers: range, chunk: jax.Array | int
    ) -> tuple[PyTree, ...]:
        """The parameters of some layers, from flat ones `[chunks, 1, width]` of a device."""
        found = []
        for layer in layers:
            leaves = self.columns.read_some(packed, stage, self.leaves_of(layer), chunk, 0)
            found.append(jax.tree.unflatten(jax.tree.structure(self.layers[layer].params), leaves))
        return tuple(found)

    def parameters_per_stage(self) -> tuple[int, ...]:
        """How many parameters every stage has."""
        return tuple(
            sum(math.prod(leaf.shape) for leaf in self._leaves(stage))
            for stage in range(self.num_stages)
        )

    def pack(self, blocks: dict[str, PyTree]) -> dict[str, jax.Array]:
        """The parameters of every stage laid flat, `[num_stages, width]`, from layer order."""
        stages = [
            [
                leaf
                for layer in self.layers_of(stage)
                for leaf in jax.tree.leaves(blocks.get(self.layers[layer].name, {}))
            ]
            for stage in range(self.num_stages)
        ]
        packed = {}
        for number, shape in enumerate(self.columns.shapes):
            rows = [
                [
                    value.reshape(-1)
                    for value, (column, _) in zip(values, places, strict=True)
                    if column == number
                ]
                for values, places in zip(stages, self.columns.places, strict=True)
            ]
            # An optimizer may keep its moments in another dtype than that of the parameters.
            dtype = next(value.dtype for row in rows for value in row)
            packed[str(shape.dtype)] = jnp.stack(
                [_fill(row, shape.shape[0], dtype) for row in rows]
            )
        return packed

    def unpack(self, packed: dict[str, jax.Array]) -> dict[str, PyTree]:
        """The inverse of `pack`: a tree for each layer that has parameters, by name."""
        rings = [packed[str(shape.dtype)] for shape in self.columns.shapes]
        found = {}
        for stage in range(self.num_stages):
            values = self.columns.read(rings, stage, stage)
            for layer in self.layers_of(stage):
                mine = [values[number] for number in self.leaves_of(layer)]
                if mine:
                    structure = jax.tree.structure(self.layers[layer].params)
                    found[self.layers[layer].name] = jax.tree.unflatten(structure, mine)
        return found

    def _leaves(self, stage: int) -> list[jax.ShapeDtypeStruct]:
        return [
            leaf
            for layer in self.layers_of(stage)
            for leaf in jax.tree.leaves(self.layers[layer].params)
        ]


def _fill(values: list[jax.Array], width: int, dtype: jnp.dtype) -> jax.Array:
    """Flat values one behind the other, and zeros up to a width."""
    room = width - sum(value.size for value in values)
    return jnp.concatenate([*values, jnp.zeros(room, dtype)])


def _count(layer: Layer) -> int:
    return len(jax.tree.leaves(layer.params))
