"""A forward pipeline that is an ordinary differentiable function.

No schedule and no table: in tick `t`, device `d` runs its stage on microbatch `t - d`, and passes
the result on. A path that comes to a device again is taken in legs, each without a repetition: with
a loop of several chunks the microbatches go round as often, with a V they go forth and back.
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

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxpipe.runtime import buffers
from jaxpipe.runtime.circular_stages import stages_of
from jaxpipe.runtime.loss import LossMeans, weighted_sums
from jaxpipe.runtime.microbatch import Microbatches, cut
from jaxpipe.runtime.model import Params, PyTree
from jaxpipe.runtime.randomness import example_keys
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
    path = spec.layout.placement.paths[0]
    results = None
    for leg in _legs(path):
        results = sweep.take(leg, results)
    return jax.tree.map(lambda leaf: sweep.share(leaf, path[-1]), results)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Leg:
    """Consecutive stages on different devices.

    Attributes:
        first_stage: The first of them.
        devices: Where they lie.
        before: Where the stage before the first one lies; None if that is the first of all.
        is_last: Whether the last stage is the last of all.
    """

    first_stage: int
    devices: tuple[int, ...]
    before: int | None
    is_last: bool


def _legs(path: tuple[int, ...]) -> list[_Leg]:
    """A path cut wherever it comes to a device again."""
    starts = [0]
    for stage, device in enumerate(path):
        if device in path[starts[-1] : stage]:
            starts.append(stage)
    return [
        _Leg(
            first_stage=start,
            devices=path[start:end],
            before=path[start - 1] if start else None,
            is_last=end == len(path),
        )
        for start, end in zip(starts, [*starts[1:], len(path)], strict=True)
    ]


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
        self.micro = micro
        self.keys = keys
        self.finish = finish
        self.device = jax.lax.axis_index("pipe")
        self.stages = stages_of(spec, params, jax.eval_shape(lambda: self._side(0)))

    def take(self, leg: _Leg, inputs: PyTree | None) -> PyTree:
        """All microbatches through the stages of a leg.

        Args:
            leg: Which stages.
            inputs: What the leg before made, `[num_microbatches, ...]`; None in the first leg,
                which starts with the embedding.

        Returns:
            On the last device of the leg, its results `[num_microbatches, ...]`.
        """
        num_microbatches, first, last = self.spec.num_microbatches, leg.devices[0], leg.devices[-1]
        onwards = list(itertools.pairwise(leg.devices))
        if inputs is not None and leg.before != first:
            inputs = jax.lax.ppermute(inputs, "pipe", [(leg.before, first)])
        absent = num_microbatches + len(leg.devices)
        places = [
            leg.devices.index(device) if device in leg.devices else absent
            for device in range(self.spec.num_devices)
        ]
        position = jnp.array(places, jnp.int32)[self.device]

        def enter(microbatch: jax.Array) -> PyTree:
            if inputs is None:
                return self.stages.enter(self._side(microbatch))
            return buffers.read(inputs, microbatch)

        def run(x: PyTree, microbatch: jax.Array) -> PyTree:
            side = self._side(microbatch)
            return self.stages.run(leg.first_stage, position, len(leg.devices), x, side)

        def leave(x: PyTree, microbatch: jax.Array) -> PyTree:
            return self._end(x, microbatch) if leg.is_last else x

        def tick(x: PyTree, time: jax.Array) -> tuple[PyTree, PyTree]:
            place = time - position
            active = (place >= 0) & (place < num_microbatches)
            microbatch = jnp.clip(place, 0, num_microbatches - 1)
            enters, leaves = self.device == first, self.device == last
            x = _cond(active & enters, lambda _: enter(microbatch), x)
            x = _cond(active, lambda x: run(x, microbatch), x)
            empty = _zeros(jax.eval_shape(leave, x, microbatch))
            result = _cond(active & leaves, lambda _: leave(x, microbatch), empty)
            return jax.lax.ppermute(x, "pipe", onwards), result

        ticks = jnp.arange(num_microbatches + len(leg.devices) - 1, dtype=jnp.int32)
        _, results = jax.lax.scan(tick, _zeros(self.stages.x), ticks)
        return jax.tree.map(lambda leaf: leaf[len(leg.devices) - 1 :], results)

    def share(self, leaf: jax.Array, owner: int) -> jax.Array:
        """One device's value, on all devices of the pipeline."""
        if leaf.dtype == jnp.bool_:
            return self.share(leaf.astype(jnp.int8), owner).astype(jnp.bool_)
        mine = jnp.where(self.device == owner, leaf, jnp.zeros_like(leaf))
        return jax.lax.psum(mine, "pipe")

    def _side(self, microbatch: jax.Array | int) -> PyTree:
        """`(batch, keys)` of a microbatch."""
        return buffers.read((self.micro.batch, self.keys), microbatch)

    def _end(self, x: PyTree, microbatch: jax.Array) -> PyTree:
        batch, _ = side = self._side(microbatch)
        return self.finish(self.stages.outputs(x, side), batch, self.micro.valid[microbatch])


def _cond(active: jax.Array, function: Callable[[PyTree], PyTree], x: PyTree) -> PyTree:
    """`function(x)` where `active` holds, else `x`."""
    return jax.lax.cond(active, function, lambda x: x, x)


def _zeros(like: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
