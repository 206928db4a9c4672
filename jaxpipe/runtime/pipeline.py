"""A pipeline over pure functions: the compiled steps, and the checks that stand before them."""

import copy
import functools
from collections.abc import Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxpipe.lower import Program, TableSizes, encode, lower
from jaxpipe.runtime import circular, engine, plain
from jaxpipe.runtime.layer_program import Policy
from jaxpipe.runtime.layout import Layout, split_layers
from jaxpipe.runtime.loss import LossMeans
from jaxpipe.runtime.memory import predict_memory
from jaxpipe.runtime.mesh import check_mesh
from jaxpipe.runtime.microbatch import check_batch
from jaxpipe.runtime.model import LayeredModel, Params, PyTree
from jaxpipe.runtime.plan import PipelinePlan, make_plan
from jaxpipe.runtime.randomness import check_step_key
from jaxpipe.runtime.remat import Remat, choose_remat
from jaxpipe.runtime.spec import PipelineSpec
from jaxpipe.schedule.costs import Costs
from jaxpipe.schedule.names import make_schedule
from jaxpipe.schedule.schedule import Schedule
from jaxpipe.schedule.sizes import check_sizes
from jaxpipe.schedule.validate import validate


class FunctionalPipeline:
    """A model given as pure functions, run through a pipeline.

    All methods are functions of their arguments and may be called inside `jax.jit`. Parameters are
    in pipeline layout (`to_pipeline` moves them there); batches are pytrees of arrays
    `[batch_size, ...]` over all replicas, of any size that divides by the number of replicas.

    Args:
        model: The model.
        mesh: A mesh with the axis `pipe`, and optionally `data`.
        schedule: The name of a schedule, or one of one's own.
        num_microbatches: Microbatches of each replica's part of a batch.
        remat: What the backward computes again: `"none"`, `"selective"`, `"full"`, or a policy of
            `jax.checkpoint` for the blocks.
        compute_dtype: The dtype to compute in; by default that of the parameters. Gradients are
            accumulated in the dtype of the parameters either way.
        layers_per_stage: Layers of each stage, by default as equal as can be.
        costs: What the actions cost, to lower the schedule with; by default F = 1, BW = 2.

    Raises:
        TypeError, ValueError: If the arguments do not fit each other.
    """

    def __init__(
        self,
        model: LayeredModel,
        *,
        mesh: Mesh,
        num_microbatches: int,
        schedule: str | Schedule = "1f1b",
        remat: str | Policy | Remat = "selective",
        compute_dtype: Any = None,
        layers_per_stage: Sequence[int] | None = None,
        costs: Costs | None = None,
    ) -> None:
        check_mesh(mesh)
        check_sizes(num_microbatches=num_microbatches)
        self.program = _lower(schedule, mesh.shape["pipe"], num_microbatches, costs)
        placement = self.program.schedule.placement
        layers = split_layers(model.num_layers, placement.num_stages, layers_per_stage)
        self.spec = PipelineSpec(
            model=model,
            layout=Layout(placement, layers),
            mesh=mesh,
            num_microbatches=num_microbatches,
            remat=choose_remat(remat),
            compute_dtype=None if compute_dtype is None else jnp.dtype(compute_dtype),
        )
        self.sizes = TableSizes.of(self.program)
        self._compile()

    def _compile(self) -> None:
        """Sets up the compiled functions; nothing is traced before they are called."""
        self._value_and_grad = jax.jit(engine.value_and_grad(self.spec, self.sizes))
        self._loss = jax.jit(circular.loss(self.spec))
        self._forward = jax.jit(circular.forward(self.spec))
        self._plain = jax.jit(functools.partial(plain.value_and_grad, self.spec.model))
        self._to_pipeline = jax.jit(self._lay_out, out_shardings=self.shardings)
        self._from_pipeline = jax.jit(self._collect)

    @functools.cached_property
    def table(self) -> np.ndarray:
        """The program as integers, `[num_ticks, num_devices, len(Column)]`."""
        return encode(self.program, self.sizes.num_ticks)

    def with_schedule(self, schedule: str | Schedule, *, costs: Costs | None = None) -> Self:
        """The same pipeline under another schedule with the same stages.

        If the new schedule takes no more ticks and slots than the old one, the compiled step is
        shared, and nothing is compiled again.

        Raises:
            ValueError: If the schedule places its stages in another way.
        """
        spec = self.spec
        program = _lower(schedule, spec.num_devices, spec.num_microbatches, costs)
        if program.schedule.placement.paths != spec.layout.placement.paths:
            raise ValueError(
                f"schedule {program.schedule.name!r} has {program.schedule.num_stages} stages on "
                f"devices {program.schedule.placement.paths}, but the parameters lie on "
                f"{spec.layout.placement.paths}; make a new pipeline for it"
            )
        other = copy.copy(self)
        other.__dict__.pop("table", None)
        other.program = program
        if not self.sizes.holds(TableSizes.of(program)):
            other.sizes = self.sizes.join(TableSizes.of(program))
            other._compile()
        return other

    def value_and_grad(
        self, params: Params, batch: PyTree, key: jax.Array | None = None
    ) -> tuple[tuple[jax.Array, LossMeans], Params]:
        """The loss of a batch and its gradient by every parameter, as the schedule runs them.

        Args:
            params: Parameters in pipeline layout.
            batch: Leaves `[batch_size, ...]`.
            key: The key of this step, or None for a step without randomness.

        Returns:
            `((loss, means), gradients)`, with gradients laid out as the parameters.

        Raises:
            TypeError, ValueError: If the arguments do not fit the pipeline.
        """
        self._check(params, batch, key)
        means, grads = self._value_and_grad(self.table, params, batch, key)
        return (means.loss, means), grads

    def evaluate(
        self, params: Params, batch: PyTree, key: jax.Array | None = None
    ) -> tuple[jax.Array, LossMeans]:
        """The loss of a batch, by the circular forward; differentiable."""
        self._check(params, batch, key)
        means = self._loss(params, batch, key)
        return means.loss, means

    def forward(self, params: Params, batch: PyTree, key: jax.Array | None = None) -> PyTree:
        """What the head returns for a batch, `[batch_size, ...]`; differentiable."""
        self._check(params, batch, key)
        return self._forward(params, batch, key)

    def plain_value_and_grad(
        self, params: Params, batch: PyTree, key: jax.Array | None = None
    ) -> tuple[tuple[jax.Array, LossMeans], Params]:
        """What `value_and_grad` must return, computed without a pipeline: the reference."""
        self._check(params, batch, key)
        means, grads = self._plain(self.spec.cast(self.from_pipeline(params)), batch, key)
        grads = jax.tree.map(
            lambda grad, leaf: grad.astype(leaf.dtype), self.to_pipeline(grads), params
        )
        return (means.loss, means), grads

    def plan(self, params: Params, batch: PyTree, key: jax.Array | None = None) -> PipelinePlan:
        """What a step with these arguments will do and take; arrays or their shapes will do.

        Every action is compiled alone for its workspace, but not the step.
        """
        self._check(params, batch, key)
        memory = predict_memory(self.spec, self.sizes, params, batch, key)
        num_examples = jax.tree.leaves(batch)[0].shape[0]
        return make_plan(self.spec, self.program, params, num_examples, memory)

    def to_pipeline(self, tree: PyTree) -> PyTree:
        """Every `Params` in a tree moved from layer order to this pipeline's layout and devices.

        The tree may be parameters, an optimizer's state, or both together; all other leaves stay as
        they are. Arrays may lie on the devices of another pipeline.
        """

        def move(node: Any) -> Any:
            if isinstance(node, Params):
                return self._to_pipeline(jax.tree.map(self._bring, node))
            return node

        return jax.tree.map(move, tree, is_leaf=lambda node: isinstance(node, Params))

    def from_pipeline(self, tree: PyTree) -> PyTree:
        """Every `Params` in a tree moved back to layer order: the inverse of `to_pipeline`."""
        return jax.tree.map(
            lambda node: self._from_pipeline(node) if isinstance(node, Params) else node,
            tree,
            is_leaf=lambda node: isinstance(node, Params),
        )

    @property
    def shardings(self) -> Params:
        """The shardings of parameters in pipeline layout, as a prefix of their tree."""
        return jax.tree.map(
            lambda spec: NamedSharding(self.spec.mesh, spec),
            self.spec.params_spec,
            is_leaf=lambda node: isinstance(node, PartitionSpec),
        )

    def _lay_out(self, params: Params) -> Params:
        """Parameters in pipeline layout, from layer order."""
        return Params(self.spec.layout.to_pipeline(params.blocks), params.outer)

    def _bring(self, leaf: Any) -> Any:
        """An array that was put on other devices than the mesh's, brought to all of the mesh's."""
        if isinstance(leaf, Tracer) or not isinstance(leaf, jax.Array):
            return leaf
        elsewhere = leaf.sharding.device_set != set(self.spec.mesh.devices.flat)
        if not (leaf.committed and elsewhere):
            return leaf
        return jax.device_put(leaf, NamedSharding(self.spec.mesh, PartitionSpec()))

    def _collect(self, params: Params) -> Params:
        """Parameters in layer order, from pipeline layout."""
        return Params(self.spec.layout.from_pipeline(params.blocks), params.outer)

    def _check(self, params: Params, batch: PyTree, key: jax.Array | None) -> None:
        check_batch(batch, self.spec.num_replicas)
        check_step_key(key)
        places = self.spec.layout.layer_at.shape
        if not isinstance(params, Params):
            raise TypeError(
                "params must be jaxpipe.Params in pipeline layout, such as pipeline.params(model); "
                f"found {type(params).__name__}"
            )
        wrong = [
            f"{jax.tree_util.keystr(path)} {list(leaf.shape)}"
            for path, leaf in jax.tree_util.tree_leaves_with_path(params.blocks)
            if leaf.shape[:3] != places
        ]
        if wrong:
            raise ValueError(
                f"block parameters must be in this pipeline's layout, [devices, chunks, layers, "
                f"...] = {[*places, ...]}; found {', '.join(wrong[:3])}. pipeline.to_pipeline "
                "moves parameters there from layer order"
            )


def _lower(
    schedule: str | Schedule, num_devices: int, num_microbatches: int, costs: Costs | None
) -> Program:
    """The program of a schedule that fits a mesh."""
    if isinstance(schedule, str):
        schedule = make_schedule(schedule, num_devices, num_microbatches)
    elif not isinstance(schedule, Schedule):
        raise TypeError(
            f"schedule must be a name such as '1f1b' or a jaxpipe.schedule.Schedule; found "
            f"{schedule!r}"
        )
    validate(schedule)
    found = (schedule.num_devices, schedule.num_microbatches)
    if found != (num_devices, num_microbatches):
        raise ValueError(
            f"schedule {schedule.name!r} is for {found[0]} devices and {found[1]} microbatches, "
            f"but the mesh has pipe={num_devices} and num_microbatches={num_microbatches}; make "
            "the schedule for these sizes"
        )
    return lower(schedule, costs or Costs())
