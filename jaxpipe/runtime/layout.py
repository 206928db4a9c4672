"""Which layers lie on which device, and parameters moved between layer order and that layout.

Stages are contiguous runs of layers, of sizes that differ by one at most unless the user says
otherwise. A device keeps the layers of its stages (one per chunk) in arrays with room for the
longest stage:

    layer order      [num_layers, ...]
    pipeline layout  [num_devices, num_chunks, max_layers, ...]      first dim sharded over `pipe`

Room that is left over holds zeros. It is never executed, has gradient zero, and adds nothing to a
norm, so elementwise optimizers work on either layout alike.
"""

import dataclasses
import functools
import operator
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxpipe.runtime.model import PyTree
from jaxpipe.schedule.placement import Placement


@dataclasses.dataclass(frozen=True)
class Layout:
    """How layers lie on devices.

    Attributes:
        placement: The devices of the stages; parameters lie along the first path.
        layers_per_stage: Number of layers of every stage, in model order.
        num_devices: Devices of the pipeline, of which some may hold no stage.
    """

    placement: Placement
    layers_per_stage: tuple[int, ...]
    num_devices: int

    @property
    def num_layers(self) -> int:
        return sum(self.layers_per_stage)

    @property
    def max_layers(self) -> int:
        return max(self.layers_per_stage)

    @property
    def first_layers(self) -> tuple[int, ...]:
        """The first layer of every stage."""
        return tuple(int(first) for first in np.cumsum((0, *self.layers_per_stage[:-1])))

    @functools.cached_property
    def layer_at(self) -> np.ndarray:
        """The layer at each place, or -1 where none is: `[num_devices, num_chunks, max_layers]`."""
        num_chunks = self.placement.num_chunks // len(self.placement.paths)
        places = np.full((self.num_devices, num_chunks, self.max_layers), -1)
        for device in range(self.num_devices):
            for chunk, stage in enumerate(self.placement.stages_of(device)):
                first, count = self.first_layers[stage], self.layers_per_stage[stage]
                places[device, chunk, :count] = np.arange(first, first + count)
        return places

    def to_pipeline(self, blocks: PyTree) -> PyTree:
        """Blocks in pipeline layout, from layer order."""
        layers = self.layer_at

        def place(leaf: jax.Array) -> jax.Array:
            placed = jnp.take(leaf, np.maximum(layers, 0), axis=0)
            here = (layers >= 0).reshape(layers.shape + (1,) * (leaf.ndim - 1))
            return placed if here.all() else jnp.where(here, placed, jnp.zeros((), leaf.dtype))

        return jax.tree.map(place, blocks)

    def from_pipeline(self, blocks: PyTree) -> PyTree:
        """Blocks in layer order, from pipeline layout."""
        layers = self.layer_at.ravel()
        places = np.argsort(np.where(layers < 0, self.num_layers, layers), kind="stable")

        def collect(leaf: jax.Array) -> jax.Array:
            rows = leaf.reshape(-1, *leaf.shape[3:])
            return jnp.take(rows, places[: self.num_layers], axis=0)

        return jax.tree.map(collect, blocks)


def split_layers(
    num_layers: int, num_stages: int, layers_per_stage: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Layers per stage: as given, or as equal as can be, with the longer stages first.

    A stage may be given no layer at all: the first one then only embeds, the last one is only the
    head, and any other passes on what it receives.

    Raises:
        ValueError: If there are fewer layers than stages and nobody said which stages stay empty,
            or the given numbers do not fit.
    """
    if layers_per_stage is None:
        if num_stages > num_layers:
            raise ValueError(
                f"every stage needs at least one layer: found {num_layers} layers for {num_stages} "
                f"stages; use a mesh with at most {num_layers} devices along 'pipe', a deeper "
                "model, or say in layers_per_stage which stages have none"
            )
        size, longer = divmod(num_layers, num_stages)
        return (size + 1,) * longer + (size,) * (num_stages - longer)
    counts = tuple(operator.index(count) for count in layers_per_stage)
    if len(counts) != num_stages or sum(counts) != num_layers or min(counts) < 0:
        size, longer = divmod(num_layers, num_stages)
        even = [size + (stage < longer) for stage in range(num_stages)]
        raise ValueError(
            f"layers_per_stage must hold {num_stages} numbers, none negative, that add up to "
            f"{num_layers}; found {list(counts)}, which add up to {sum(counts)}; {even} would do"
        )
    return counts
