"""How long the actions of a pipeline take on the device at hand.

Every phase runs alone, on one device, with the state and operands it has in the loop
(`jaxpipe.runtime.alone`), once for each kind of stage: the first one also embeds, the last one also
runs the head, and stages may differ in their number of layers. The result is a `Costs` in seconds,
which lowers a schedule to the ticks that suit this model and this device, and predicts the step.
Where microbatches come in slices, each is measured; all kinds of actions get the same shares.
"""

import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from jaxpipe.lower.table import BackwardPass, Column, Forward, TableSizes, num_columns
from jaxpipe.lower.ticks import Phase
from jaxpipe.runtime.alone import device_shapes, phases_alone
from jaxpipe.runtime.model import Params, PyTree
from jaxpipe.runtime.spec import PipelineSpec
from jaxpipe.schedule.action import Kind
from jaxpipe.schedule.costs import Costs
from jaxpipe.schedule.schedule import Backward

_FIRST_COLUMNS = {
    Phase.FORWARD: Column.FORWARD,
    Phase.RECOMPUTE: Column.RECOMPUTE,
    Phase.BACKWARD: Column.BACKWARD,
    Phase.WEIGHT: Column.WEIGHT,
}


def measure_costs(
    spec: PipelineSpec,
    sizes: TableSizes,
    params: Params,
    batch: PyTree,
    key: PyTree = None,
    *,
    repeats: int = 5,
) -> Costs:
    """The costs of a pipeline's actions in seconds, stage by stage.

    Only shapes of the arguments matter; the phases run on zeros.

    Args:
        spec: The pipeline.
        sizes: Sizes of the table that will run.
        params: Parameters in pipeline layout, or their shapes.
        batch: A batch over all replicas, or its shapes.
        key: The step's key or its shape, or None.
        repeats: Timed runs of each phase and stage; the median counts.
    """
    device = device_shapes(spec, sizes, params, batch, key)
    target = SingleDeviceSharding(next(iter(spec.mesh.local_devices)))
    state, operands = _zeros((device.state, device.operands), target)
    num_slices = spec.num_slices
    seconds: dict[Phase, dict[tuple, list[float]]] = {}  # of each slice
    for phase, function in phases_alone(spec, sizes, device.programs).items():
        run = jax.jit(function, donate_argnums=0)
        seconds[phase] = {}
        for stage in range(spec.num_stages):
            kind_of_stage = _kind_of(spec, stage)
            is_used = phase is Phase.FORWARD or spec.backward[stage] is not Backward.NONE
            if is_used and kind_of_stage not in seconds[phase]:
                seconds[phase][kind_of_stage] = []
                for number in range(num_slices):
                    row = jax.device_put(_row(spec, sizes, phase, stage, number), target)
                    state, found = _time(run, state, row, operands, repeats)
                    seconds[phase][kind_of_stage].append(found)

    def by_stage(phase: Phase) -> tuple[float, ...]:
        found = seconds.get(phase, {})
        return tuple(
            sum(found.get(_kind_of(spec, stage), [0.0])) for stage in range(spec.num_stages)
        )

    backward, weight = by_stage(Phase.BACKWARD), by_stage(Phase.WEIGHT)
    both = tuple(one + other for one, other in zip(backward, weight, strict=True))
    measured = [(Kind.F, by_stage(Phase.FORWARD)), (Kind.BW, both)]
    if sizes.recomputes:
        measured.append((Kind.R, by_stage(Phase.RECOMPUTE)))
    if sizes.is_split or BackwardPass.INPUT in sizes.variants:
        measured += [(Kind.B, backward), (Kind.W, weight)]
    of_slices = [
        sum(found[number] for of_phase in seconds.values() for found in of_phase.values())
        for number in range(num_slices)
    ]
    shares = tuple(each / sum(of_slices) for each in of_slices) if num_slices > 1 else ()
    return Costs(by_stage=tuple(measured), slice_shares=shares)


def _kind_of(spec: PipelineSpec, stage: int) -> tuple:
    """What the duration of a stage's actions depends on."""
    if spec.packing is not None:
        return (stage,)
    is_last = stage == spec.num_stages - 1
    return stage == 0, is_last, spec.layout.layers_per_stage[stage], spec.backward[stage]


def _row(
    spec: PipelineSpec, sizes: TableSizes, phase: Phase, stage: int, number: int
) -> np.ndarray:
    """A row that orders one phase of a stage for a slice; all slots are the first."""
    row = np.zeros(num_columns(spec.layout.placement, spec.num_slices), np.int32)
    is_trained = spec.backward[stage] is Backward.FULL
    first = _FIRST_COLUMNS[phase]
    match phase:
        case Phase.FORWARD:
            row[first] = min(each for each in sizes.variants if isinstance(each, Forward))
        case Phase.BACKWARD:
            row[first] = BackwardPass.FULL if is_trained else BackwardPass.INPUT
        case _:
            row[first] = is_trained or phase is Phase.RECOMPUTE
    row[first + 1] = stage
    row[first + 4] = number
    return row


def _time(
    run: Callable, state: PyTree, row: jax.Array, operands: PyTree, repeats: int
) -> tuple[PyTree, float]:
    """The state and the median wall time of a run, after one to warm up."""
    state = jax.block_until_ready(run(state, row, operands))
    found = []
    for _ in range(repeats):
        begin = time.perf_counter()
        state = jax.block_until_ready(run(state, row, operands))
        found.append(time.perf_counter() - begin)
    return state, statistics.median(found)


def _zeros(shapes: PyTree, sharding: SingleDeviceSharding) -> PyTree:
    """Zeros of these shapes on one device; keys are keys of zero."""

    def zero(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.split(jax.random.key(0), leaf.shape)
        return jnp.zeros(leaf.shape, leaf.dtype)

    return jax.device_put(jax.tree.map(zero, shapes), sharding)
