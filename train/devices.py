"""The devices of a run: accelerators, or CPU devices that jax simulates."""

import os

import jax
from jax.sharding import Mesh

from jaxpipe import make_mesh
from train.config import MeshConfig
from train.user_error import UserError

# XLA lets this many programs per device be under way at once. On CPU each of them takes a thread,
# and keeps it while it waits in a collective: with fewer threads two programs can wait for each
# other, until XLA aborts the process.
_PROGRAMS_IN_FLIGHT = 32


def simulate_devices(config: MeshConfig) -> None:
    """Has jax simulate CPU devices, if the run asks for some. Call it before jax looks for devices.

    Accelerators, where there are any, are used all the same.
    """
    if config.simulated_devices is not None:
        jax.config.update("jax_num_cpu_devices", config.simulated_devices)
        threads = _PROGRAMS_IN_FLIGHT * config.simulated_devices
        os.environ.setdefault("PJRT_NPROC", str(threads))


def build_mesh(config: MeshConfig) -> Mesh:
    """The mesh (`pipe`, `data`) over the first devices there are.

    Raises:
        UserError: There are too few.
    """
    try:
        return make_mesh(pipe=config.pipe, data=config.data)
    except ValueError as error:
        on_cpu = "" if jax.default_backend() == "cpu" else "JAX_PLATFORMS=cpu and "
        raise UserError(
            f"mesh.pipe={config.pipe}, mesh.data={config.data}: {error}. For this program: "
            f"{on_cpu}--mesh.simulated_devices {config.pipe * config.data}"
        ) from error
