"""Compiles the training step of a config for accelerators that need not be there.

    python -m train.aot configs/gpt2_small.yaml --topology h100:1x1x4
    python -m train.aot configs/gpt2_small.yaml --topology v5e:2x2 --json
    python -m train.aot configs/gpt2_small.yaml --topology h100:1x1x8 --mesh.pipe 8

Prints what is predicted, then what the compiler says: the memory of a device and whether the run
fits, what crosses between devices, and whether sends travel beside computation. No parameter is
ever made, so a model of any size will do.

Ends with status 0 if the run fits, 1 if it does not, 2 if it cannot be compiled as asked.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from jaxpipe import Pipeline, make_mesh
from jaxpipe.aot import (
    DoesNotFitError,
    MissingCompilerError,
    Report,
    Topology,
    compile_for,
    memory_refused,
    parse_topology,
)
from jaxpipe.aot.topology import check_compiler
from train.build import build_pipeline
from train.config import Config, parse_arguments
from train.optimizer import build_optimizer
from train.step import build_train_step, state_shapes
from train.user_error import UserError


def build(config: Config, topology: Topology) -> Pipeline:
    """The pipeline of a config on a topology.

    Raises:
        UserError: The mesh is not as large as the topology.
        MissingCompilerError: The compiler for it is not installed.
    """
    needed = config.mesh.pipe * config.mesh.data
    if needed != topology.num_devices:
        data, rest = divmod(topology.num_devices, config.mesh.pipe)
        fix = (
            f"--mesh.data {data}"
            if data and not rest
            else f"--mesh.pipe {topology.num_devices} --mesh.data 1"
        )
        raise UserError(
            f"mesh.pipe={config.mesh.pipe} x mesh.data={config.mesh.data} is a mesh of {needed} "
            f"devices, but {topology} has {topology.num_devices}; use {fix}, or a topology of "
            f"{needed} devices"
        )
    devices = topology.devices()
    return build_pipeline(config, make_mesh(config.mesh.pipe, config.mesh.data, devices=devices))


def batch_shapes(config: Config, pipeline: Pipeline) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes of a batch of the run."""
    shape = (config.training.batch_size, config.data.sequence_length)
    sharding = NamedSharding(pipeline.spec.mesh, pipeline.spec.batch_spec)
    dtypes = {"tokens": jnp.int32, "targets": jnp.int32, "weights": jnp.float32}
    return {
        name: jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
        for name, dtype in dtypes.items()
    }


def compile_run(config: Config, topology: Topology, *, usable: float | None, quiet: bool) -> Report:
    """Compiles the training step of a config for a topology.

    Raises:
        UserError, MissingCompilerError: It cannot be compiled as asked.
        DoesNotFitError: The compiler gives up for lack of memory.
    """
    pipeline = build(config, topology)
    optimizer = build_optimizer(config.optimizer, config.training.steps)
    batch = batch_shapes(config, pipeline)
    with memory_refused(topology):
        plan = pipeline.plan(pipeline.param_shapes, batch, jax.random.key(config.seed))
    if not quiet:
        print(plan, end="\n\n", flush=True)
    state = state_shapes(pipeline.param_shapes, optimizer)
    step: Any = build_train_step(pipeline, optimizer, state, seed=config.seed)
    # In a whole training step the gradients are temporary, too.
    predicted = plan.memory.temporaries + plan.memory.gradients
    number = jax.ShapeDtypeStruct((), jnp.int32)
    return compile_for(topology, step, state, batch, number, predicted=predicted, usable=usable)


def main(arguments: Sequence[str]) -> int:
    """Runs the program and returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m train.aot",
        usage="python -m train.aot CONFIG --topology NAME [--json] [--usable SHARE] [--a.b VALUE]",
        description="Compiles the training step of a config for accelerators that need not be "
        "there.",
        allow_abbrev=False,
    )
    parser.add_argument("--topology", required=True, help="such as h100:1x1x8 or v5e:2x4")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--usable", type=float, help="share of the memory that a program gets")
    said, rest = parser.parse_known_args(arguments)
    # The accelerators of this machine, if it has any, are left to others.
    jax.config.update("jax_platforms", "cpu")
    try:
        topology = parse_topology(said.topology)
        check_compiler(topology.chip)
        topology.chip.usable_bytes(said.usable)  # checked before anything compiles
        config = parse_arguments("train.aot", rest).config
        report = compile_run(config, topology, usable=said.usable, quiet=said.json)
    except DoesNotFitError as error:
        found = {"topology": said.topology, "fits": False, "reason": str(error)}
        print(json.dumps(found, indent=2) if said.json else f"peak          {error}")
        return 1
    except (UserError, MissingCompilerError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(report.to_json(), indent=2) if said.json else report)
    return 0 if report.fits else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
