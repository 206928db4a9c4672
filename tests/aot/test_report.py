"""Steps compiled for devices that are not there."""

import json
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxpipe.aot import (
    DoesNotFitError,
    MissingCompilerError,
    Report,
    compile_for,
    memory_refused,
    parse_topology,
)
from jaxpipe.aot.topology import check_compiler
from jaxpipe.runtime import make_mesh
from tests.runtime.gpu_topology import h100_devices

# Programs for machines that are not there can be written to the compilation cache, but not read.
pytestmark = pytest.mark.filterwarnings("ignore:Error reading persistent compilation cache entry")


def report(*, predicted: int | None = None, usable: float | None = None) -> Report:
    """A matmul whose result is summed over two devices."""
    mesh = make_mesh(2, devices=h100_devices(2))
    rows, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("pipe",), ()))

    def step(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint((x @ w).sum(0), everywhere)

    x = jax.ShapeDtypeStruct((1024, 1024), jnp.float32, sharding=rows)
    w = jax.ShapeDtypeStruct((1024, 1024), jnp.float32, sharding=everywhere)
    topology = parse_topology("h100:1x1x2")
    return compile_for(topology, step, x, w, predicted=predicted, usable=usable)


def test_bytes_collectives_and_verdict():
    found = report(predicted=2 * 2**20)
    assert found.arguments == 4 * 1024 * (512 + 1024)
    assert found.peak >= found.arguments + found.outputs + found.temporaries
    (reduction,) = found.collectives
    assert (reduction.kind, reduction.count, reduction.bytes) == ("all-reduce", 1, 4 * 1024)
    assert reduction.groups == ((0, 1),)
    assert found.fits
    text = str(found)
    assert "compiled for  2 x NVIDIA H100 SXM5 80 GB (h100:1x1x2)" in text
    assert "predicted 2.0 MiB" in text
    assert "1 x all-reduce once, 4.0 KiB in all, among 2 devices" in text
    assert "usable: fits" in text


def test_what_does_not_fit():
    found = report(usable=1e-5)
    assert not found.fits
    assert "usable: DOES NOT FIT" in str(found)
    assert "predicted" not in str(found)


def test_json():
    found = report().to_json()
    assert set(found) == {
        "topology",
        "chip",
        "devices",
        "fits",
        "bytes",
        "collectives",
        "sends",
        "compile_seconds",
    }
    assert found["topology"] == "h100:1x1x2"
    assert found["bytes"]["usable"] == int(0.75 * found["bytes"]["memory"])
    assert found["bytes"]["predicted_temporaries"] is None


@pytest.mark.parametrize("usable", [0.0, 1.5])
def test_a_share_that_is_none(usable):
    message = f"usable={usable} must be above 0 and at most 1, the share of a chip's memory that a"
    with pytest.raises(ValueError, match=re.escape(message)):
        report(usable=usable)


def test_a_compiler_that_gives_up():
    """The compiler for TPUs ends with an error where that for GPUs reports what would be needed."""
    topology = parse_topology("v5e:2x2")
    message = "DOES NOT FIT on v5e:2x2: RESOURCE_EXHAUSTED: 23.23G exceeds 15.75G"
    with pytest.raises(DoesNotFitError, match=re.escape(message) + "$"), memory_refused(topology):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 23.23G exceeds 15.75G\nSee a page")
    with (
        pytest.raises(jax.errors.JaxRuntimeError, match="^INTERNAL"),
        memory_refused(topology),
    ):
        raise jax.errors.JaxRuntimeError("INTERNAL: a bug")


@pytest.mark.slow
@pytest.mark.parametrize("chip", ["a100", "h200", "b200"])
def test_every_gpu_compiles(chip):
    h100_devices(1)  # skips where there is no compiler
    topology = parse_topology(f"{chip}:1x1x1")
    here = NamedSharding(make_mesh(1, devices=topology.devices()), PartitionSpec())
    x = jax.ShapeDtypeStruct((256, 256), jnp.bfloat16, sharding=here)
    assert compile_for(topology, lambda x: x @ x, x).fits


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("name", ["v5e:2x2", "v5p:2x2x1", "v6e:2x2"])
def test_every_tpu_compiles(name):
    """In a process of its own, since libtpu takes its environment when it is loaded."""
    try:
        check_compiler(parse_topology(name).chip)
    except MissingCompilerError as missing:
        pytest.skip(f"NOTHING IS CHECKED FOR TPUS: {missing}")
    command = ["train.aot", "configs/gpt_tiny.yaml", "--topology", name, "--json"]
    ran = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["devices"] == 4
    assert {each["kind"] for each in found["collectives"] if each["in_loop"]} == {
        "collective-permute"
    }
    assert all(each["is_hidden"] for each in found["sends"])
