"""What a pipeline is, but for its schedule."""

import dataclasses

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from jaxpipe.runtime.layout import Layout
from jaxpipe.runtime.model import LayeredModel, Params
from jaxpipe.runtime.remat import Remat


@dataclasses.dataclass(frozen=True, kw_only=True)
class PipelineSpec:
    """What every compiled program of a pipeline is specialised to.

    Attributes:
        model: The model.
        layout: Which layers lie on which device.
        mesh: A mesh with the axis `pipe`, and perhaps `data` and others.
        num_microbatches: Microbatches of every replica.
        remat: What the backward computes again.
        compute_dtype: The floating-point dtype to compute in, or None for that of the parameters.
    """

    model: LayeredModel
    layout: Layout
    mesh: Mesh
    num_microbatches: int
    remat: Remat
    compute_dtype: jnp.dtype | None = None

    @property
    def num_devices(self) -> int:
        """Devices along `pipe`."""
        return self.mesh.shape["pipe"]

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
