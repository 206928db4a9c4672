"""Several programs by one step: tables are operands, so nothing is compiled twice."""

from jaxpipe.lower import Program, TableSizes, encode
from jaxpipe.runtime import FunctionalPipeline, LossMeans, Params, engine
from tests.runtime.quick import quick_jit
from tests.runtime.reference import key_of
from tests.runtime.toy import toy_batch

NUM_EXAMPLES = 22
"""Neither they nor the 11 of one of two replicas divide by the microbatches of the tests."""


def run_programs(
    pipeline: FunctionalPipeline,
    params: Params,
    programs: dict[str, Program],
    sizes: TableSizes,
    *,
    poison: bool = False,
) -> dict[str, tuple[LossMeans, Params]]:
    """Loss and gradients in layer order for each program, from parameters in layer order."""
    step = quick_jit(engine.value_and_grad(pipeline.spec, sizes, poison=poison))
    params, batch = pipeline.to_pipeline(params), toy_batch(NUM_EXAMPLES)
    found = {}
    for name, program in programs.items():
        means, grads = step(encode(program, sizes.num_ticks), params, batch, key_of(0))
        found[name] = (means, pipeline.from_pipeline(grads))
    return found
