"""From a configuration to the pipeline of its model, and initial parameters."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh

from jaxpipe import Params, Pipeline, recompute
from jaxpipe.schedule import make_schedule, slice_microbatches
from models.gpt import GPT
from train.config import Config
from train.devices import build_mesh
from train.slicing import choose_slices
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


def build_pipeline(config: Config, mesh: Mesh | None = None) -> Pipeline:
    """The pipeline of a run, on this mesh or on the one that the settings ask for.

    Raises:
        UserError: The settings do not fit together, or there are too few devices.
    """
    mesh = mesh or build_mesh(config.mesh)
    settings = config.pipeline
    chunks = {} if settings.num_chunks is None else {"num_chunks": settings.num_chunks}
    remat = settings.remat
    if settings.remat_stages is not None:
        remat = recompute(settings.remat_stages, except_last=remat == "except_last")
    try:
        schedule = settings.schedule
        if chunks:
            schedule = make_schedule(
                schedule, config.mesh.pipe, settings.num_microbatches, **chunks
            )
        slices = choose_slices(config)
        count = slices if isinstance(slices, int) else len(slices or ())
        if count > 1 and not isinstance(schedule, str):
            schedule = slice_microbatches(schedule, count)
        return Pipeline(
            nnx.eval_shape(lambda: create_model(config)),
            token_loss,
            mesh=mesh,
            schedule=schedule,
            num_microbatches=settings.num_microbatches,
            remat=remat,
            compute_dtype=config.model.dtype,
            slices=slices,
        )
    except (TypeError, ValueError) as error:
        raise UserError(str(error)) from error


def initial_params(pipeline: Pipeline, config: Config) -> Params:
    """Initial parameters, bit for bit the same for every mesh."""
    return pipeline.params(create_model(config))
