"""How many layers of a model each stage gets, by what the layers weigh.

All functions return `layers_per_stage`, and find the best contiguous partition there is
(`jaxpipe.plan.partition`): the heaviest stage is as light as can be. They differ in what a layer
weighs: one, its parameters, the time of its forward and backward, or the memory it takes. Where
devices hold several chunks, ask for as many stages as the schedule has.
"""

import functools
import math
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxpipe.nn.sequential import Sequential, SequentialStructure, take_apart_layers
from jaxpipe.nn.skips import WithSkips
from jaxpipe.plan.partition import partition
from jaxpipe.runtime.differentiable import join, split
from jaxpipe.runtime.layer_program import trace_layer
from jaxpipe.runtime.model import Layer, PyTree
from jaxpipe.runtime.remat import choose_remat

Speeds = Sequence[int | float] | None
"""How fast the device of each stage is; equal by default."""


def by_weights(
    weights: Sequence[int | float], num_stages: int, *, speeds: Speeds = None
) -> tuple[int, ...]:
    """Layers per stage, by weights of one's own.

    Example:
        >>> by_weights([3, 1, 4, 1, 5, 9, 2, 6], 3)
        (5, 2, 1)
    """
    return partition(weights, num_stages, speeds=speeds).layers_per_stage


def by_count(model: Sequential, num_stages: int, *, speeds: Speeds = None) -> tuple[int, ...]:
    """Layers per stage, as equally many as can be."""
    return by_weights([1] * len(model), num_stages, speeds=speeds)


def by_parameters(model: Sequential, num_stages: int, *, speeds: Speeds = None) -> tuple[int, ...]:
    """Layers per stage, by the number of their parameters; the model may be abstract."""
    layers = take_apart_layers(model).functions(_no_loss, "").layers
    weights = [
        sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(layer.params)) for layer in layers
    ]
    return by_weights(weights, num_stages, speeds=speeds)


def by_type(
    model: Sequential, num_stages: int, pattern: str, *, speeds: Speeds = None
) -> tuple[int, ...]:
    """Layers per stage, by how many of them are of some type.

    Args:
        model: The model.
        num_stages: How many stages.
        pattern: A regular expression, searched for in the names of the layers' classes, or of the
            functions.
        speeds: How fast the device of each stage is; equal by default.

    Raises:
        ValueError: If fewer layers match than there are stages: some stage would have none.
    """
    kinds = [_kind(layer) for layer in model]
    weights = [int(re.search(pattern, kind) is not None) for kind in kinds]
    if sum(weights) < num_stages:
        raise ValueError(
            f"{sum(weights)} layers match {pattern!r}, too few for {num_stages} stages; the layers "
            f"are of the types {', '.join(sorted(set(kinds)))}"
        )
    return by_weights(weights, num_stages, speeds=speeds)


def by_time(
    model: Sequential,
    batch: PyTree,
    num_stages: int,
    *,
    inputs: str | Callable = "inputs",
    repeats: int = 5,
    speeds: Speeds = None,
) -> tuple[int, ...]:
    """Layers per stage, by how long their forward and backward take on the device at hand.

    Args:
        model: The model; only its shapes matter.
        batch: One microbatch, or its shapes.
        num_stages: How many stages.
        inputs: What the first layer gets, as for `SequentialPipeline`.
        repeats: Timed runs of each layer, after one to warm up; the median counts.
        speeds: How fast the device of each stage is; equal by default.
    """
    weights = measure_layers(model, batch, inputs=inputs, repeats=repeats)
    return by_weights(weights, num_stages, speeds=speeds)


def by_memory(
    model: Sequential,
    batch: PyTree,
    num_stages: int,
    *,
    inputs: str | Callable = "inputs",
    optimizer_factor: float = 4.0,
    microbatches: int = 1,
    remat: str = "selective",
) -> tuple[int, ...]:
    """Layers per stage, by the bytes that each takes on its device, its stash as if traced alone.

    Args:
        model: The model; only its shapes matter.
        batch: One microbatch, or its shapes.
        num_stages: How many stages.
        inputs: What the first layer gets, as for `SequentialPipeline`.
        optimizer_factor: Bytes of parameters, gradient and optimizer state, by those of the
            parameters: 2 for SGD, 3 with momentum, 4 for Adam.
        microbatches: For how many microbatches a stage keeps its stash at once: all of them under
            GPipe, about as many as there are stages under 1F1B.
        remat: What is kept for the backward, as for `SequentialPipeline`.
    """
    policy = choose_remat(remat).policy
    weights = []
    for layer, x, side in _each_layer(take_apart_layers(model), batch, inputs):
        program = trace_layer(layer, layer.params, x, side, policy)
        stash = _bytes(list(program.stash)) * microbatches
        weights.append(_bytes(layer.params) * optimizer_factor + stash)
    return by_weights(weights, num_stages)


def measure_layers(
    model: Sequential, batch: PyTree, *, inputs: str | Callable = "inputs", repeats: int = 5
) -> list[float]:
    """How long the forward and backward of every layer take together, in seconds.

    Args:
        model: The model; only its shapes matter.
        batch: One microbatch, or its shapes.
        inputs: What the first layer gets, as for `SequentialPipeline`.
        repeats: Timed runs of each layer, after one to warm up; the median counts.
    """
    found = []
    for layer, x, side in _each_layer(take_apart_layers(model), batch, inputs):
        run = jax.jit(functools.partial(_forward_and_backward, layer, x))
        operands = jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (layer.params, *split(x), side)
        )
        jax.block_until_ready(run(*operands))
        seconds = []
        for _ in range(repeats):
            begin = time.perf_counter()
            jax.block_until_ready(run(*operands))
            seconds.append(time.perf_counter() - begin)
        found.append(statistics.median(seconds))
    return found


def _forward_and_backward(
    layer: Layer, x: PyTree, params: PyTree, x_gradient: list, x_rest: list, side: PyTree
) -> PyTree:
    def forward(params: PyTree, x_gradient: list) -> list:
        return split(layer.block(params, join(x, x_gradient, x_rest), *side))[0]

    made, vjp = jax.vjp(forward, params, x_gradient)
    return made, vjp([jnp.ones_like(leaf) for leaf in made])


def _each_layer(
    structure: SequentialStructure, batch: PyTree, inputs: str | Callable
) -> Iterator[tuple[Layer, PyTree, PyTree]]:
    """Every layer with the shapes of its input (the first has none) and of `(batch, keys)`."""
    model = structure.functions(_no_loss, inputs)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), batch)
    side = (shapes, None)
    x: PyTree = ()
    skips: dict[str, PyTree] = {}
    for number, layer in enumerate(model.layers):
        each = model.with_inputs(layer) if number == 0 else layer
        operands = (x, {name: skips.pop(name) for name in layer.pops})
        yield each, operands, side
        x, stashed = jax.eval_shape(each.block, each.params, operands, *side)
        skips.update(stashed)


def _kind(layer: Any) -> str:
    if isinstance(layer, WithSkips):
        return _kind(layer.layer)
    return getattr(layer, "__name__", None) or type(layer).__name__


def _bytes(tree: PyTree) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _no_loss(outputs: PyTree) -> PyTree:
    return outputs
