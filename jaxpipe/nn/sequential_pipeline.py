"""The front door for a `Sequential`: any layers, in stages that are balanced for them."""

from collections.abc import Callable, Sequence
from typing import Any

from jax.sharding import Mesh

from jaxpipe.nn.sequential import Sequential, take_apart_layers
from jaxpipe.runtime.layer_program import Policy
from jaxpipe.runtime.model import Params
from jaxpipe.runtime.pipeline import FunctionalPipeline
from jaxpipe.runtime.remat import Remat
from jaxpipe.schedule.costs import Costs
from jaxpipe.schedule.schedule import Schedule


class SequentialPipeline(FunctionalPipeline):
    """A `Sequential`, run through a pipeline.

    Its layers may differ in everything: parameters, shapes and structure of what they return. Each
    stage is a program of its own. What travels between two stages is laid flat, as are parameters
    at rest: `from_pipeline` gives them back by layer, and checkpoints hold them so.

    Args:
        model: The model, real or abstract (`nnx.eval_shape`).
        loss: `(outputs, ...) -> losses`, `(losses, weights)` or `(losses, weights, metrics)`, given
            entries of the batch by name; not reduced over the batch (see `jaxpipe.runtime.loss`).
        mesh: A mesh with the axis `pipe`, and optionally `data`.
        num_microbatches: Microbatches of each replica's part of a batch.
        schedule: The name of a schedule, or one of one's own.
        inputs: What the first layer gets: the name of an entry of the batch, or a function of the
            batch.
        layers_per_stage: Layers of each stage, in model order; by default as equally many as can
            be. See `jaxpipe.nn.balance` for better ones.
        remat: What the backward computes again: `"none"`, `"selective"`, `"full"`,
            `"except_last"`, or a policy of `jax.checkpoint` for the layers.
        compute_dtype: The dtype to compute in, by default that of the parameters.
        costs: What the actions cost, to lower the schedule with.

    Raises:
        TypeError, ValueError: If the arguments do not fit each other.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from flax import nnx
        >>> from jaxpipe import Sequential, SequentialPipeline, make_mesh
        >>> rngs = nnx.Rngs(0)
        >>> first, last = nnx.Linear(3, 8, rngs=rngs), nnx.Linear(8, 1, rngs=rngs)
        >>> model = Sequential([first, jax.nn.relu, last])
        >>> def loss(outputs, *, targets):
        ...     return (outputs - targets)[:, 0] ** 2
        >>> pipeline = SequentialPipeline(model, loss, mesh=make_mesh(pipe=2), num_microbatches=4)
        >>> batch = {"inputs": jnp.ones((8, 3)), "targets": jnp.ones((8, 1))}
        >>> (value, means), grads = pipeline.value_and_grad(pipeline.params(model), batch)
        >>> pipeline.from_pipeline(grads).blocks["0"]["kernel"].shape
        (3, 8)
    """

    def __init__(
        self,
        model: Sequential,
        loss: Callable,
        *,
        mesh: Mesh,
        num_microbatches: int,
        schedule: str | Schedule = "1f1b",
        inputs: str | Callable = "inputs",
        layers_per_stage: Sequence[int] | None = None,
        remat: str | Policy | Remat = "selective",
        compute_dtype: Any = None,
        costs: Costs | None = None,
    ) -> None:
        if not isinstance(model, Sequential):
            raise TypeError(
                f"SequentialPipeline takes a jaxpipe.Sequential; found {type(model).__name__}. A "
                "model of an embedding, equal blocks and a head goes into jaxpipe.Pipeline"
            )
        self.structure = take_apart_layers(model)
        super().__init__(
            self.structure.functions(loss, inputs),
            mesh=mesh,
            num_microbatches=num_microbatches,
            schedule=schedule,
            remat=remat,
            compute_dtype=compute_dtype,
            layers_per_stage=layers_per_stage,
            costs=costs,
        )

    def params(self, model: Sequential) -> Params:
        """The parameters of a model, in pipeline layout and on the devices.

        Raises:
            ValueError: If the model is not of the shape that the pipeline was made for.
        """
        return self.to_pipeline(self.structure.parameters(model))

    @property
    def param_shapes(self) -> Params:
        """Shapes, dtypes and shardings of the parameters in pipeline layout, without any array."""
        return self.shapes_in_pipeline(self.structure.parameter_shapes())

    def to_plain(self, params: Params) -> Sequential:
        """The model with these parameters, which are in pipeline layout."""
        return self.structure.assemble(self.from_pipeline(params))
