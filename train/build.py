"""From a configuration to the pipeline of its model, and initial parameters."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxpipe import Params, Pipeline
from models.gpt import GPT
from train.config import Config
from train.devices import build_mesh
from train.user_error import UserError


def token_loss(
    logits: jax.Array, *, targets: jax.Array, weights: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Cross-entropy of every token, `[batch, sequence]` in nats, and how much it counts."""
    precise = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    return optax.softmax_cross_entropy_with_integer_labels(precise, targets), weights


def create_model(config: Config) -> GPT:
    """The model with its initial weights, on one device."""
    return GPT(config.model, rngs=nnx.Rngs(config.seed))


def build_pipeline(config: Config) -> Pipeline:
    """The pipeline of a run.

    Raises:
        UserError: The settings do not fit together, or there are too few devices.
    """
    mesh = build_mesh(config.mesh)
    try:
        return Pipeline(
            nnx.eval_shape(lambda: create_model(config)),
            token_loss,
            mesh=mesh,
            schedule=config.pipeline.schedule,
            num_microbatches=config.pipeline.num_microbatches,
            remat=config.pipeline.remat,
            compute_dtype=config.model.dtype,
        )
    except (TypeError, ValueError) as error:
        raise UserError(str(error)) from error


def initial_params(pipeline: Pipeline, config: Config) -> Params:
    """Initial parameters, bit for bit the same for every mesh."""
    return pipeline.params(create_model(config))
