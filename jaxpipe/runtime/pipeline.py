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
from jaxpipe.runtime.alone import device_shapes
from jaxpipe.runtime.layer_program import Policy
from jaxpipe.runtime.layout import Layout, split_layers
from jaxpipe.runtime.loss import LossMeans
from jaxpipe.runtime.memory import predict_memory
from jaxpipe.runtime.mesh import check_mesh
from jaxpipe.runtime.microbatch import check_batch
from jaxpipe.runtime.model import LayeredModel, Params, PyTree, SequentialModel
from jaxpipe.runtime.packing import Packing
from jaxpipe.runtime.plan import PipelinePlan, make_plan
from jaxpipe.runtime.profile import measure_costs
from jaxpipe.runtime.randomness import check_step_key
from jaxpipe.runtime.remat import Remat, choose_remat
from jaxpipe.runtime.sliced_plain import largest_difference
from jaxpipe.runtime.slices import Slicing, check_has_state, choose_slicing
from jaxpipe.runtime.spec import PipelineSpec
from jaxpipe.runtime.stage_copies import copy_pairs
from jaxpipe.runtime.waste import warn_of_batch, warn_of_layout, warn_of_schedule
from jaxpipe.schedule.costs import Costs
from jaxpipe.schedule.names import make_schedule, schedule_names, schedule_options
from jaxpipe.schedule.schedule import Backward, Schedule
from jaxpipe.schedule.sizes import check_sizes
from jaxpipe.schedule.slicing import slice_microbatches
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
        remat: What the backward computes again: `"none"`, `"selective"`, `"full"`,
            `"except_last"`, `recompute(...)` for some stages, or a policy of `jax.checkpoint` for
            the blocks.
        compute_dtype: The dtype to compute in; by default that of the parameters. Gradients are
            accumulated in the dtype of the parameters either way.
        layers_per_stage: Layers of each stage, by default as equal as can be.
        costs: What the actions cost, to lower the schedule with; by default F = 1, BW = 2.
        slices: Cuts every microbatch into slices of consecutive tokens: how many, as equal as can
            be, or the length of each. By default as many as the schedule has. A name such as
            `"seq1f1b"` makes its schedule for so many; other schedules of whole microbatches get
            every action replaced by those of its slices.

    Raises:
        TypeError, ValueError: If the arguments do not fit each other.
    """

    def __init__(
        self,
        model: LayeredModel | SequentialModel,
        *,
        mesh: Mesh,
        num_microbatches: int,
        schedule: str | Schedule = "1f1b",
        remat: str | Policy | Remat = "selective",
        compute_dtype: Any = None,
        layers_per_stage: Sequence[int] | None = None,
        costs: Costs | None = None,
        slices: int | Sequence[int] | None = None,
    ) -> None:
        check_mesh(mesh)
        check_sizes(num_microbatches=num_microbatches)
        remat = choose_remat(remat)
        asked = choose_slicing(slices)
        self.program = _lower(schedule, remat, mesh, num_microbatches, costs, asked)
        num_slices = self.program.schedule.num_slices
        if num_slices > 1:
            check_has_state(model, num_slices)
        placement = self.program.schedule.placement
        copy_pairs(placement)
        layers = split_layers(model.num_layers, placement.num_stages, layers_per_stage)
        packing = None
        if isinstance(model, SequentialModel):
            packing = Packing(layers=model.layers, layers_per_stage=layers)
            layers = (1,) * placement.num_stages
        self.spec = PipelineSpec(
            model=model,
            layout=Layout(placement, layers, mesh.shape["pipe"]),
            mesh=mesh,
            num_microbatches=num_microbatches,
            remat=remat,
            backward=self.program.schedule.backward,
            compute_dtype=None if compute_dtype is None else jnp.dtype(compute_dtype),
            slicing=(asked or Slicing(num_slices=num_slices)) if num_slices > 1 else None,
            packing=packing,
        )
        self.sizes = TableSizes.of(self.program)
        warn_of_schedule(self.program)
        warn_of_layout(self.spec.layout)
        self._compile()

    def _compile(self) -> None:
        """Sets up the compiled functions; nothing is traced before they are called."""
        self._value_and_grad = jax.jit(engine.value_and_grad(self.spec, self.sizes))
        self._loss = jax.jit(circular.loss(self.spec))
        self._forward = jax.jit(circular.forward(self.spec))
        self._plain = jax.jit(
            functools.partial(plain.value_and_grad, self.spec.model, frozen=self.frozen)
        )
        self._to_pipeline = jax.jit(self._lay_out, out_shardings=self.shardings)
        self._from_pipeline = jax.jit(self._collect)

    @property
    def frozen(self) -> plain.Frozen:
        """What no gradient reaches, because the schedule has no backward for it."""
        backward, layers_per_stage = self.spec.backward, self.spec.layers_per_stage
        stages = zip(backward, layers_per_stage, strict=True)
        layers = (each is not Backward.FULL for each, count in stages for _ in range(count))
        return plain.Frozen(
            layers=tuple(layers),
            embedding=backward[0] is Backward.NONE,
            head=not self.spec.trains,
        )

    @functools.cached_property
    def table(self) -> np.ndarray:
        """The program as integers, `[num_ticks, num_devices, columns]`."""
        return encode(self.program, self.sizes.num_ticks)

    def with_schedule(self, schedule: str | Schedule, *, costs: Costs | None = None) -> Self:
        """The same pipeline under another schedule with the same stages.

        If the new schedule takes no more ticks and slots than the old one, the compiled step is
        shared, and nothing is compiled again.

        Raises:
            ValueError: If the schedule places its stages in another way, or trains others.
        """
        spec = self.spec
        program = _lower(
            schedule, spec.remat, spec.mesh, spec.num_microbatches, costs, spec.slicing
        )
        if program.schedule.num_slices != spec.num_slices:
            raise ValueError(
                f"schedule {program.schedule.name!r} cuts microbatches into "
                f"{program.schedule.num_slices} slices, but the pipeline was made for "
                f"{spec.num_slices}; make a new pipeline for it"
            )
        if program.schedule.placement.paths != spec.layout.placement.paths:
            raise ValueError(
                f"schedule {program.schedule.name!r} has {program.schedule.num_stages} stages on "
                f"devices {program.schedule.placement.paths}, but the parameters lie on "
                f"{spec.layout.placement.paths}; make a new pipeline for it"
            )
        if program.schedule.backward != spec.backward:
            raise ValueError(
                f"schedule {program.schedule.name!r} has the backwards "
                f"{', '.join(program.schedule.backward)} of its stages, but the pipeline was made "
                f"for {', '.join(spec.backward)}; make a new pipeline for it"
            )
        other = copy.copy(self)
        other.__dict__.pop("table", None)
        other.program, sizes = program, TableSizes.of(program)
        if not self.sizes.holds(sizes):
            other.sizes = self.sizes.join(sizes) if self.sizes.can_join(sizes) else sizes
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

    def plan(
        self,
        params: Params,
        batch: PyTree,
        key: jax.Array | None = None,
        *,
        costs: Costs | None = None,
    ) -> PipelinePlan:
        """What a step with these arguments will do and take; arrays or their shapes will do.

        Every phase of a tick is compiled alone for its workspace, but not the step.

        Args:
            params: Parameters in pipeline layout.
            batch: Leaves `[batch_size, ...]`.
            key: The key of a step, or None.
            costs: Costs in seconds, such as `measure` finds, to predict the duration of the step.
        """
        self._check(params, batch, key)
        device = device_shapes(self.spec, self.sizes, params, batch, key)
        program = self.program if costs is None else self.program.under(costs)
        return make_plan(
            self.spec,
            program,
            params,
            num_examples=jax.tree.leaves(batch)[0].shape[0],
            memory=predict_memory(self.spec, self.sizes, device),
            whole=device.programs.whole if self.sizes.is_split else (),
            slice_lengths=device.programs.slice_lengths,
            padding=device.programs.padding(is_split=self.sizes.is_split),
            is_measured=costs is not None,
        )

    def check_slices(
        self,
        params: Params,
        batch: PyTree,
        key: jax.Array | None = None,
        *,
        tolerance: float = 1e-3,
    ) -> None:
        """Tries whether the model gives on slices what it gives on whole sequences.

        Not a step, but a check to run once for a new model, on a small batch: both run unpipelined
        and are compared, with all layers in one program. Cutting changes nothing only if the state
        holds all that later tokens need, positions are taken from `positions`, and random masks
        belong to tokens.

        Args:
            params: Parameters in pipeline layout.
            batch: Leaves `[batch_size, ...]`.
            key: The key of a step; without one nothing random is tried.
            tolerance: Allowed difference of an output, relative to the largest one.

        Raises:
            ValueError: If the outputs differ; the message says by how much.
        """
        self._check(params, batch, key)
        model = self.spec.model
        if self.spec.slicing is None or isinstance(model, SequentialModel):
            return
        run = functools.partial(largest_difference, model, slicing=self.spec.slicing)
        found = float(jax.jit(run)(self.spec.cast(self.from_pipeline(params)), batch, key))
        if not found <= tolerance:
            raise ValueError(
                f"on {self.spec.num_slices} slices the model gives outputs that differ by "
                f"{found:.2g} of the largest from those on whole sequences (tolerance "
                f"{tolerance:g}). Look for positions that a part counts from 0 instead of taking "
                "`positions`, for tokens that see later ones or what the state does not hold, and "
                "for dropout whose mask depends on the shape: without a key nothing is dropped"
            )

    def measure(
        self, params: Params, batch: PyTree, key: jax.Array | None = None, *, repeats: int = 5
    ) -> Costs:
        """How long the actions of each stage take, in seconds, on the first device of the mesh.

        Pass the result to `plan` for the duration of a step, or to `with_schedule` and to a new
        pipeline for ticks that suit it. Only shapes of the arguments matter. Devices that share
        cores, as simulated ones do, take longer together than each alone.

        Args:
            params: Parameters in pipeline layout.
            batch: Leaves `[batch_size, ...]`.
            key: The key of a step, or None.
            repeats: Timed runs of each action; the median counts.
        """
        self._check(params, batch, key)
        return measure_costs(self.spec, self.sizes, params, batch, key, repeats=repeats)

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

    def shapes_in_pipeline(self, params: Params) -> Params:
        """Shapes, dtypes and shardings in pipeline layout, from shapes in layer order."""
        shapes, shardings = jax.eval_shape(self._lay_out, params), self.shardings

        def shaped(tree: PyTree, sharding: NamedSharding) -> PyTree:
            return jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree
            )

        return Params(
            shaped(shapes.blocks, shardings.blocks), shaped(shapes.outer, shardings.outer)
        )

    def _lay_out(self, params: Params) -> Params:
        """Parameters in pipeline layout, from layer order."""
        packing = self.spec.packing
        blocks = packing.pack(params.blocks) if packing else params.blocks
        return Params(self.spec.layout.to_pipeline(blocks), params.outer)

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
        blocks = self.spec.layout.from_pipeline(params.blocks)
        packing = self.spec.packing
        return Params(packing.unpack(blocks) if packing else blocks, params.outer)

    def _check(self, params: Params, batch: PyTree, key: jax.Array | None) -> None:
        num_examples = check_batch(batch, self.spec.num_replicas)
        warn_of_batch(self.spec, num_examples)
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
    schedule: str | Schedule,
    remat: Remat,
    mesh: Mesh,
    num_microbatches: int,
    costs: Costs | None,
    slicing: Slicing | None,
) -> Program:
    """The program of a schedule that fits a mesh, with the recomputation that was asked for."""
    num_devices = mesh.shape["pipe"]
    if isinstance(schedule, str):
        schedule = _make_schedule(schedule, num_devices, num_microbatches, slicing)
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
    if slicing is not None and schedule.num_slices != slicing.num_slices:
        raise ValueError(
            f"schedule {schedule.name!r} has {schedule.num_slices} slices of each microbatch, but "
            f"slices= asks for {slicing.num_slices}; leave slices= out, or pass the schedule that "
            f"jaxpipe.schedule.slice_microbatches(schedule, {slicing.num_slices}) makes of one "
            "without slices"
        )
    is_on_cpu = mesh.devices.flat[0].platform == "cpu"
    return lower(remat.apply(schedule), costs or Costs(), sends_block=is_on_cpu)


def _make_schedule(
    name: str, num_devices: int, num_microbatches: int, slicing: Slicing | None
) -> Schedule:
    """The schedule of a name, for as many slices as were asked for."""
    if slicing is None:
        return make_schedule(name, num_devices, num_microbatches)
    if name in schedule_names() and "num_slices" in schedule_options(name):
        return make_schedule(name, num_devices, num_microbatches, num_slices=slicing.num_slices)
    whole = make_schedule(name, num_devices, num_microbatches)
    return slice_microbatches(whole, slicing.num_slices)
