"""What the toy gives without a pipeline."""

import functools

import jax
import numpy as np

from jaxpipe.runtime import LossMeans, LossSums, Params, plain
from jaxpipe.runtime.loss import weighted_sums
from jaxpipe.runtime.model import PyTree
from tests.runtime.quick import quick_jit
from tests.runtime.toy import loss, toy_batch, toy_model, toy_params


@functools.cache
def reference(
    num_layers: int, num_examples: int, seed: int | None, dtype: str = "float64"
) -> tuple[LossMeans, Params]:
    """Loss and gradients in layer order; dropout from the key of `seed`, or none."""
    step = quick_jit(functools.partial(plain.value_and_grad, toy_model(num_layers)))
    return step(toy_params(num_layers, dtype), toy_batch(num_examples, dtype), key_of(seed))


def key_of(seed: int | None) -> jax.Array | None:
    return None if seed is None else jax.random.key(seed)


@functools.cache
def reference_outputs(num_layers: int, num_examples: int, seed: int | None) -> PyTree:
    """What the toy's head returns for every example, in float64."""
    run = quick_jit(functools.partial(plain.outputs, toy_model(num_layers)))
    return run(toy_params(num_layers), toy_batch(num_examples), key_of(seed))


def reference_sums(
    num_layers: int, num_examples: int, seed: int | None, num_microbatches: int, num_replicas: int
) -> LossSums:
    """The loss sums of each microbatch: over its examples in all replicas, counted one by one."""
    outputs, batch = reference_outputs(num_layers, num_examples, seed), toy_batch(num_examples)
    per_replica = num_examples // num_replicas
    size = -(-per_replica // num_microbatches)
    examples = np.arange(num_examples)
    microbatch_of = examples % per_replica // size
    every = [
        weighted_sums(loss(outputs, batch), jax.numpy.asarray(microbatch_of == microbatch))
        for microbatch in range(num_microbatches)
    ]
    return jax.tree.map(lambda *sums: jax.numpy.stack(sums), *every)
