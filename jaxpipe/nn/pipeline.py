"""The front door: an ordinary Flax model becomes a pipeline in one call."""

from collections.abc import Callable, Sequence
from typing import Any

from flax import nnx
from jax.sharding import Mesh

from jaxpipe.nn.flax_model import Part, take_apart
from jaxpipe.runtime.layer_program import Policy
from jaxpipe.runtime.model import Params
from jaxpipe.runtime.pipeline import FunctionalPipeline
from jaxpipe.runtime.remat import Remat
from jaxpipe.schedule.costs import Costs
from jaxpipe.schedule.schedule import Schedule


class Pipeline(FunctionalPipeline):
    """A Flax NNX model, run through a pipeline.

    The model needs three parts: an embedding, a stack or list of equal blocks, and a head. Each
    part is called with its input and, by name, with those entries of the batch dict that its
    signature asks for (and `keys`: a PRNG key per example); see `jaxpipe.nn.by_name`. Nothing in
    the model changes, and `to_plain` gives it back with other weights.

    Args:
        model: The model, real or abstract (`nnx.eval_shape`).
        loss: `(outputs, ...) -> losses`, `(losses, weights)` or `(losses, weights, metrics)`, given
            entries of the batch by name; not reduced over the batch (see `jaxpipe.runtime.loss`).
        mesh: A mesh with the axis `pipe`, and optionally `data`.
        num_microbatches: Microbatches of each replica's part of a batch.
        schedule: The name of a schedule, or one of one's own.
        embed: The embedding: the path of an attribute, or a function that gets the model without
            its blocks and entries of the batch by name.
        blocks: The path of the blocks: one module with stacked parameters, or a list of modules.
        head: The head: the path of an attribute, or a function that gets the model without its
            blocks, the last block's output, and entries of the batch by name.
        remat: What the backward computes again: `"none"`, `"selective"`, `"full"`, or a policy of
            `jax.checkpoint` for the blocks.
        compute_dtype: The dtype to compute in, by default that of the parameters.
        layers_per_stage: Layers of each stage, by default as equal as can be.
        costs: What the actions cost, to lower the schedule with.
        slices: Cuts every microbatch into slices of consecutive tokens: how many, or the length of
            each. The blocks then go on from the state that earlier tokens have left: they have a
            method `initial_state(x)` and, given `state` by name, return `(y, state)`; see
            `jaxpipe.runtime.sequence_state`. All parts get `positions` if they ask for them.

    Raises:
        TypeError, ValueError: If the arguments do not fit each other.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from jaxpipe import Pipeline, make_mesh
        >>> class Model(nnx.Module):
        ...     def __init__(self, rngs):
        ...         self.embed = lambda inputs: inputs
        ...         self.blocks = nnx.List([nnx.Linear(3, 3, rngs=rngs) for _ in range(4)])
        ...         self.head = nnx.Linear(3, 1, rngs=rngs)
        >>> def loss(outputs, *, targets):
        ...     return (outputs - targets)[:, 0] ** 2
        >>> model = Model(nnx.Rngs(0))
        >>> pipeline = Pipeline(model, loss, mesh=make_mesh(pipe=2), num_microbatches=4)
        >>> batch = {"inputs": jnp.ones((8, 3)), "targets": jnp.ones((8, 1))}
        >>> (value, means), grads = pipeline.value_and_grad(pipeline.params(model), batch)
        >>> grads.blocks["kernel"].shape  # devices, chunks, layers of a stage, weights
        (2, 1, 2, 3, 3)
    """

    def __init__(
        self,
        model: nnx.Module,
        loss: Callable,
        *,
        mesh: Mesh,
        num_microbatches: int,
        schedule: str | Schedule = "1f1b",
        embed: Part = "embed",
        blocks: str = "blocks",
        head: Part = "head",
        remat: str | Policy | Remat = "selective",
        compute_dtype: Any = None,
        layers_per_stage: Sequence[int] | None = None,
        costs: Costs | None = None,
        slices: int | Sequence[int] | None = None,
    ) -> None:
        self.flax_model = take_apart(model, blocks)
        super().__init__(
            self.flax_model.functions(loss, embed, head),
            mesh=mesh,
            num_microbatches=num_microbatches,
            schedule=schedule,
            remat=remat,
            compute_dtype=compute_dtype,
            layers_per_stage=layers_per_stage,
            costs=costs,
            slices=slices,
        )

    def params(self, model: nnx.Module) -> Params:
        """The parameters of a model, in pipeline layout and on the devices.

        Raises:
            ValueError: If the model is not of the shape that the pipeline was made for.
        """
        return self.to_pipeline(self.flax_model.parameters(model))

    @property
    def param_shapes(self) -> Params:
        """Shapes, dtypes and shardings of the parameters in pipeline layout, without any array.

        With an abstract model (`nnx.eval_shape`) they are enough for `plan`, and to compile a step
        for devices that are not there.
        """
        return self.shapes_in_pipeline(self.flax_model.parameter_shapes())

    def to_plain(self, params: Params) -> nnx.Module:
        """The model with these parameters, which are in pipeline layout."""
        return self.flax_model.assemble(self.from_pipeline(params))
