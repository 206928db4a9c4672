"""H100s to compile for in tests, on machines that have none."""

import jax
import pytest

from jaxpipe.aot import MissingCompilerError, parse_topology


def h100_devices(count: int) -> list[jax.Device]:
    """That many H100s in one machine, to build a mesh on and to compile for."""
    try:
        return parse_topology(f"h100:1x1x{count}").devices()
    except MissingCompilerError as missing:
        pytest.skip(f"NOTHING IS CHECKED FOR GPUS: {missing}")
