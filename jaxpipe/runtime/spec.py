"""What a pipeline is, but for its schedule."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from jaxpipe.runtime.layout import Layout
from jaxpipe.runtime.model import LayeredModel, Params, SequentialModel
from jaxpipe.runtime.packing import Packing
from jaxpipe.runtime.remat import Remat
from jaxpipe.runtime.slices import Slicing
from jaxpipe.schedule.schedule import Backward


@dataclasses.dataclass(frozen=True, kw_only=True)
class PipelineSpec:
    """What every compiled program of a pipeline is specialised to.

    Attributes:
        model: The model.
        layout: Which layers lie on which device. Of a sequential model a stage counts as one layer,
            since its parameters are laid flat.
        mesh: A mesh with the axis `pipe`, and perhaps `data` and others.
        num_microbatches: Microbatches of every replica.
        remat: What the backward computes again.
        backward: The gradients that each stage needs, in model order.
        compute_dtype: The floating-point dtype to compute in, or None for that of the parameters.
        slicing: How microbatches are cut into slices of tokens; None where they are whole.
        packing: Of a sequential model, which layers a stage has and where their parameters lie.
    """

    model: LayeredModel | SequentialModel
    layout: Layout
    mesh: Mesh
    num_microbatches: int
    remat: Remat
    backward: tuple[Backward, ...]
    compute_dtype: jnp.dtype | None = None
    slicing: Slicing | None = None
    packing: Packing | None = None

    @property
    def layers_per_stage(self) -> tuple[int, ...]:
        """Layers of every stage, in model order."""
        return (self.packing or self.layout).layers_per_stage

    @property
    def num_devices(self) -> int:
        """Devices along `pipe`."""
        return self.mesh.shape["pipe"]

    @property
    def num_stages(self) -> int:
        """Stages of the model."""
        return self.layout.placement.num_stages

    @property
    def num_slices(self) -> int:
        """Slices of every microbatch."""
        return self.slicing.num_slices if self.slicing else 1

    @property
    def trains(self) -> bool:
        """Whether anything is trained: the head is, unless its stage has no backward."""
        return self.backward[-1] is not Backward.NONE

    @functools.cached_property
    def trained_chunks(self) -> tuple[int, ...]:
        """The chunks that hold a stage with weight gradients, on whichever device."""
        chunks = self.layout.placement.chunks
        return tuple(
            sorted(
                {
                    path[stage]
                    for path in chunks
                    for stage, backward in enumerate(self.backward)
                    if backward is Backward.FULL
                }
            )
        )

    @property
    def has_data(self) -> bool:
        """Whether the mesh has the axis `data`."""
        return "data" in self.mesh.axis_names

    @property
    def num_replicas(self) -> int:
        """Devices along `data`."""
        return self.mesh.shape["data"] if self.has_data else 1

    @property
    def manual_axes(self) -> tuple[str, ...]:
        """The mesh axes whose communication is written out; the compiler handles the others."""
        return ("pipe", "data") if self.has_data else ("pipe",)

    @property
    def batch_spec(self) -> PartitionSpec:
        """How the examples of a batch are sharded."""
        return PartitionSpec("data") if self.has_data else PartitionSpec()

    @property
    def params_spec(self) -> Params:
        """How parameters in pipeline layout are sharded."""
        return Params(PartitionSpec("pipe"), PartitionSpec())

    def shard(self) -> jax.Array | int:
        """Which replica this device belongs to, inside a `shard_map`."""
        return jax.lax.axis_index("data") if self.has_data else 0

    def cast(self, params: Params) -> Params:
        """The parameters in the dtype to compute in: once per step, outside any loop."""
        dtype = self.compute_dtype
        if dtype is None:
            return params

        def cast_leaf(leaf: jax.Array) -> jax.Array:
            return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

        return jax.tree.map(cast_leaf, params)
