"""A forward pipeline that is an ordinary differentiable function.

No schedule and no table: in tick `t`, device `d` runs its stage on microbatch `t - d`, and passes
the result on. With several chunks the microbatches go round as often as there are chunks.
`jax.grad` through it is GPipe by automatic differentiation; evaluation and inference use it as it
is.

    tick        0  1  2  3  4  5
    device 0    0  1  2  3  .  .
    device 1    .  0  1  2  3  .        3 devices, 4 microbatches
    device 2    .  .  0  1  2  3

The embedding runs on the first device and the head on the last one, each under a conditional, as do
the stages in idle ticks. What the head makes of each microbatch is shared with all devices at the
end.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxpipe.runtime import buffers
from jaxpipe.runtime.loss import LossMeans, weighted_sums
from jaxpipe.runtime.microbatch import Microbatches, cut
from jaxpipe.runtime.model import Params, PyTree
from jaxpipe.runtime.programs import check_block
from jaxpipe.runtime.randomness import EMBED, example_keys, part_keys
from jaxpipe.runtime.spec import PipelineSpec

Finish = Callable[[PyTree, PyTree, jax.Array], PyTree]
"""What is made of a microbatch at the end: `(outputs, batch, valid) -> result`."""


def forward(spec: PipelineSpec) -> Callable[[Params, PyTree, jax.Array | None], PyTree]:
    """The function `(params, batch, key) -> outputs`, with outputs `[batch_size, ...]`.

    Parameters are in pipeline layout; batch leaves are `[batch_size, ...]` over all replicas.
    """

    def on_device(params: Params, batch: PyTree, key: jax.Array | None) -> PyTree:
        num_examples = jax.tree.leaves(batch)[0].shape[0]
        results = _sweep(spec, params, batch, key, lambda outputs, batch, valid: outputs)
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), results)
        return jax.tree.map(lambda leaf: leaf[:num_examples], flat)

    return _shard(spec, on_device, spec.batch_spec)


def loss(spec: PipelineSpec) -> Callable[[Params, PyTree, jax.Array | None], LossMeans]:
    """The function `(params, batch, key) -> loss`, keeping no outputs."""

    def on_device(params: Params, batch: PyTree, key: jax.Array | None) -> LossMeans:
        def finish(outputs: PyTree, batch: PyTree, valid: jax.Array) -> PyTree:
            return weighted_sums(spec.model.loss(outputs, batch), valid)

        sums = _sweep(spec, params, batch, key, finish)
        if spec.has_data:
            sums = jax.lax.psum(sums, "data")
        return sums.means()

    return _shard(spec, on_device, PartitionSpec())


def _shard(spec: PipelineSpec, on_device: Callable, out_spec: PartitionSpec) -> Callable[..., Any]:
    return jax.shard_map(
        on_device,
        mesh=spec.mesh,
        in_specs=(spec.params_spec, spec.batch_spec, PartitionSpec()),
        out_specs=out_spec,
        axis_names=set(spec.manual_axes),
        check_vma=False,
    )


def _sweep(
    spec: PipelineSpec, params: Params, batch: PyTree, key: jax.Array | None, finish: Finish
) -> PyTree:
    """What `finish` makes of each microbatch, on every device: leaves `[num_microbatches, ...]`."""
    local = Params(jax.tree.map(lambda leaf: leaf[0], params.blocks), params.outer)
    micro = cut(batch, spec.num_microbatches, spec.shard())
    keys = None if key is None else example_keys(key, micro.examples)
    sweep = _Sweep(spec, spec.cast(local), micro, keys, finish)
    num_chunks = len(spec.layout.layers_per_stage) // spec.num_devices
    results = None
    for chunk in range(num_chunks):
        results = sweep.round(chunk, results, is_last=chunk == num_chunks - 1)
    return jax.tree.map(sweep.share, results)


class _Sweep:
    """One device's part in taking all microbatches through all stages."""

    def __init__(
        self,
        spec: PipelineSpec,
        params: Params,
        micro: Microbatches,
        keys: jax.Array | None,
        finish: Finish,
    ) -> None:
        self.spec = spec
        self.params = params  # blocks [num_chunks, max_layers, ...]
        self.micro = micro
        self.keys = keys
        self.finish = finish
        self.device = jax.lax.axis_index("pipe")
        self.last_device = spec.num_devices - 1
        side = jax.eval_shape(lambda: self._side(0))
        self.x = jax.eval_shape(spec.model.embed, params.outer, *side)
        layer = jax.eval_shape(lambda: buffers.read(params.blocks, 0, 0))
        check_block(spec.model, layer, self.x, side)

    def round(self, chunk: int, inputs: PyTree | None, *, is_last: bool) -> PyTree:
        """All microbatches through one chunk of every device.

        Args:
            chunk: Which chunk.
            inputs: What the last device made in the round before, `[num_microbatches, ...]`; None
                in the first round, which starts with the embedding.
            is_last: Whether to end with `finish`.

        Returns:
            On the last device, its results `[num_microbatches, ...]`.
        """
        num_devices, num_microbatches = self.spec.num_devices, self.spec.num_microbatches
        right = [(source, source + 1) for source in range(self.last_device)]
        if inputs is not None:
            inputs = jax.lax.ppermute(inputs, "pipe", [(self.last_device, 0)])

        def enter(microbatch: jax.Array) -> PyTree:
            return self._embed(microbatch) if inputs is None else buffers.read(inputs, microbatch)

        def leave(x: PyTree, microbatch: jax.Array) -> PyTree:
            return self._end(x, microbatch) if is_last else x

        def tick(x: PyTree, time: jax.Array) -> tuple[PyTree, PyTree]:
            place = time - self.device
            active = (place >= 0) & (place < num_microbatches)
            microbatch = jnp.clip(place, 0, num_microbatches - 1)
            enters, leaves = self.device == 0, self.device == self.last_device
            x = _cond(active & enters, lambda _: enter(microbatch), x)
            x = _cond(active, lambda x: self._stage(chunk, x, microbatch), x)
            empty = _zeros(jax.eval_shape(leave, x, microbatch))
            result = _cond(active & leaves, lambda _: leave(x, microbatch), empty)
            return jax.lax.ppermute(x, "pipe", right), result

        ticks = jnp.arange(num_microbatches + num_devices - 1, dtype=jnp.int32)
        _, results = jax.lax.scan(tick, _zeros(self.x), ticks)
        return jax.tree.map(lambda leaf: leaf[self.last_device :], results)

    def share(self, leaf: jax.Array) -> jax.Array:
        """The last device's value, on all devices of the pipeline."""
        if leaf.dtype == jnp.bool_:
            return self.share(leaf.astype(jnp.int8)).astype(jnp.bool_)
        mine = jnp.where(self.device == self.last_device, leaf, jnp.zeros_like(leaf))
        return jax.lax.psum(mine, "pipe")

    def _side(self, microbatch: jax.Array | int) -> PyTree:
        """`(batch, keys)` of a microbatch."""
        return buffers.read((self.micro.batch, self.keys), microbatch)

    def _embed(self, microbatch: jax.Array) -> PyTree:
        batch, keys = self._side(microbatch)
        return self.spec.model.embed(self.params.outer, batch, part_keys(keys, EMBED))

    def _stage(self, chunk: int, x: PyTree, microbatch: jax.Array) -> PyTree:
        """The layers of this device's stage in a chunk."""
        spec, layout = self.spec, self.spec.layout
        stage = chunk * spec.num_devices + self.device
        first = jnp.array(layout.first_layers, jnp.int32)[stage]
        count = jnp.array(layout.layers_per_stage, jnp.int32)[stage]
        is_even = len(set(layout.layers_per_stage)) == 1
        batch, keys = self._side(microbatch)

        def block(params: PyTree, x: PyTree, number: jax.Array) -> PyTree:
            return spec.model.block(params, x, batch, part_keys(keys, EMBED + 1 + number))

        if spec.remat.policy is not None:
            block = jax.checkpoint(block, policy=spec.remat.policy, prevent_cse=False)

        def layer(x: PyTree, operands: tuple[PyTree, jax.Array]) -> tuple[PyTree, None]:
            params, position = operands
            if is_even:
                return block(params, x, first + position), None
            return _cond(position < count, lambda x: block(params, x, first + position), x), None

        blocks = jax.tree.map(lambda leaf: leaf[chunk], self.params.blocks)
        return jax.lax.scan(layer, x, (blocks, jnp.arange(layout.max_layers, dtype=jnp.int32)))[0]

    def _end(self, x: PyTree, microbatch: jax.Array) -> PyTree:
        batch, keys = self._side(microbatch)
        head_keys = part_keys(keys, EMBED + 1 + self.spec.model.num_layers)
        outputs = self.spec.model.head(self.params.outer, x, batch, head_keys)
        return self.finish(outputs, batch, self.micro.valid[microbatch])


def _cond(active: jax.Array, function: Callable[[PyTree], PyTree], x: PyTree) -> PyTree:
    """`function(x)` where `active` holds, else `x`."""
    return jax.lax.cond(active, function, lambda x: x, x)


def _zeros(like: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
