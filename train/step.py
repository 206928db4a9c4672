"""One optimizer step as one compiled program, and the state that it updates in place."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import optax
from jax.sharding import NamedSharding, PartitionSpec

from jaxpipe import Params, Pipeline
from train.data import Batch


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainState:
    """What a step reads and replaces.

    Attributes:
        params: Parameters in pipeline layout.
        optimizer: The optimizer's state; its moments have the layout of the parameters.
    """

    params: Params
    optimizer: optax.OptState


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a step tells.

    Attributes:
        loss: Weighted mean over the whole batch, before the update.
        gradient_norm: Over all stages, before clipping.
    """

    loss: jax.Array
    gradient_norm: jax.Array


TrainStep = Callable[[TrainState, Batch, int], tuple[TrainState, StepResult]]


def initial_state(params: Params, optimizer: optax.GradientTransformationExtraArgs) -> TrainState:
    """The state before the first step; moments lie where their parameters do."""
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state_shapes(params, optimizer).optimizer)
    moments = jax.jit(optimizer.init, out_shardings=shardings)(params)
    return TrainState(params=params, optimizer=moments)


def state_shapes(params: Params, optimizer: optax.GradientTransformationExtraArgs) -> TrainState:
    """Shapes and shardings of a state, from parameters or their shapes: no array is made."""
    mesh = jax.tree.leaves(params)[0].sharding.mesh
    everywhere = NamedSharding(mesh, PartitionSpec())

    def shaped(leaf: Any, sharding: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    def moment(node: Any) -> Any:
        if isinstance(node, Params):
            return jax.tree.map(lambda leaf, like: shaped(leaf, like.sharding), node, params)
        return shaped(node, everywhere)

    moments = jax.tree.map(
        moment,
        jax.eval_shape(optimizer.init, params),
        is_leaf=lambda node: isinstance(node, Params),
    )
    return TrainState(
        params=jax.tree.map(lambda leaf: shaped(leaf, leaf.sharding), params), optimizer=moments
    )


def bytes_per_device(tree: Any) -> int:
    """What the arrays of a tree take on one device."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def build_train_step(
    pipeline: Pipeline,
    optimizer: optax.GradientTransformationExtraArgs,
    state: TrainState,
    *,
    seed: int,
) -> TrainStep:
    """Makes `train_step(state, batch, step) -> (state, result)`, which consumes its state.

    Args:
        pipeline: The model.
        optimizer: What turns gradients into updates.
        state: A state as the step will get it. What comes out lies where it lay, so that the
            second step needs no second compilation.
        seed: Decides dropout, together with the number of the step.
    """
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)

    def train_step(state: TrainState, batch: Any, step: Any) -> tuple[TrainState, StepResult]:
        key = jax.random.fold_in(jax.random.key(seed), step)
        params: Any = state.params  # optax's types know no pytree of one's own
        gradients: Any
        (loss, _), gradients = pipeline.value_and_grad(params, batch, key)
        updates, moments = optimizer.update(gradients, state.optimizer, params)
        params = optax.apply_updates(params, updates)
        result = StepResult(loss=loss, gradient_norm=optax.tree.norm(gradients))
        return TrainState(params=params, optimizer=moments), result

    return jax.jit(train_step, donate_argnums=0, out_shardings=(shardings, None))
