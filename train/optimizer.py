"""AdamW over the parameters of a pipeline.

With a warm-up and a cosine, gradients clipped by their norm over all stages, no decay on vectors.

Parameters are in pipeline layout, where a block's leaf has three leading dims (device, chunk,
layer). Padded layers have gradients of zero, so they add nothing to the norm and never move;
embedding and head are single arrays, replicated, so they count once.

Loshchilov and Hutter, 2019, Decoupled Weight Decay Regularization, arXiv 1711.05101.
"""

import jax
import optax

from jaxpipe import Params
from train.config import OptimizerConfig

_LAYOUT_DIMS = 3  # device, chunk, layer


def learning_rate_schedule(config: OptimizerConfig, num_steps: int) -> optax.Schedule:
    """The learning rate of a step, counted from 0: a linear rise, then half a cosine down.

    The rise begins at one step's share, since a first step at 0 would be wasted.
    """
    return optax.warmup_cosine_decay_schedule(
        init_value=config.learning_rate / max(config.warmup_steps, 1),
        peak_value=config.learning_rate,
        warmup_steps=config.warmup_steps,
        decay_steps=num_steps,
        end_value=config.learning_rate * config.final_learning_rate_ratio,
    )


def is_decayed(params: Params) -> Params:
    """Which parameters decay: those with two dims or more, leading dims of the layout aside."""
    return Params(
        blocks=jax.tree.map(lambda leaf: leaf.ndim - _LAYOUT_DIMS >= 2, params.blocks),
        outer=jax.tree.map(lambda leaf: leaf.ndim >= 2, params.outer),
    )


def build_optimizer(
    config: OptimizerConfig, num_steps: int
) -> optax.GradientTransformationExtraArgs:
    """AdamW as configured, for a run of `num_steps`."""
    return optax.chain(
        optax.clip_by_global_norm(config.max_gradient_norm),
        optax.adamw(
            learning_rate_schedule(config, num_steps),
            b1=config.beta1,
            b2=config.beta2,
            eps=config.epsilon,
            weight_decay=config.weight_decay,
            mask=is_decayed,
        ),
    )
