"""Meshes for pipelines: made with few words, and checked before anything compiles."""

import os
from collections.abc import Sequence

import jax
from jax.sharding import AxisType, Mesh

from jaxpipe.schedule.sizes import check_sizes


def make_mesh(pipe: int, data: int = 1, *, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh of `pipe` stages times `data` replicas.

    The stages are the outermost axis, so that neighbouring devices, which are connected best, hold
    the replicas of one stage.

    Args:
        pipe: Devices of the pipeline.
        data: Replicas of the pipeline.
        devices: Which devices to use, by default the first ones of `jax.devices()`.

    Raises:
        ValueError: If there are fewer devices.
    """
    check_sizes(pipe=pipe, data=data)
    _allow_waiting_programs(pipe * data)
    devices = jax.devices() if devices is None else devices
    needed = pipe * data
    if len(devices) < needed:
        platform = devices[0].platform if devices else "no"
        fix = (
            "On CPU, devices can be simulated: set the environment variable "
            f"JAX_NUM_CPU_DEVICES={needed}, or call "
            f'jax.config.update("jax_num_cpu_devices", {needed}) before the first use of JAX'
            if platform == "cpu"
            else f"Use a pipeline of at most {max(len(devices), 1)} devices, or simulate them on "
            f"CPU with JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES={needed}"
        )
        raise ValueError(
            f"a mesh of pipe={pipe} x data={data} takes {needed} devices; found {len(devices)} "
            f"{platform} device(s). {fix}"
        )
    axis_types = (AxisType.Auto, AxisType.Auto)
    return jax.make_mesh(
        (pipe, data), ("pipe", "data"), axis_types=axis_types, devices=devices[:needed]
    )


def _allow_waiting_programs(num_devices: int) -> None:
    """Gives simulated devices enough threads, if JAX has not started its CPU client yet.

    On CPU a program that waits in a collective keeps its thread. With as few threads as cores, two
    programs under way on several simulated devices can wait for each other until XLA aborts the
    process. XLA admits 32 programs per device, so that many threads per device are always enough.
    """
    os.environ.setdefault("PJRT_NPROC", str(32 * num_devices))


def check_mesh(mesh: Mesh) -> None:
    """Raises unless a mesh suits a pipeline.

    Raises:
        TypeError: If it is no mesh.
        ValueError: If the axis `pipe` is missing, or an axis is not of type Auto.
    """
    if not isinstance(mesh, Mesh):
        raise TypeError(
            f"mesh must be a jax.sharding.Mesh, such as jaxpipe.make_mesh(pipe=4); found {mesh!r}"
        )
    if "pipe" not in mesh.axis_names:
        found = ", ".join(f"{axis!r} ({size})" for axis, size in mesh.shape.items())
        raise ValueError(
            f"the mesh must have an axis named 'pipe', along which the stages lie; found "
            f"{found or 'no axes'}. jaxpipe.make_mesh(pipe=4, data=2) makes one"
        )
    explicit = [
        name
        for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
        if kind is not AxisType.Auto
    ]
    if explicit:
        raise ValueError(
            f"all axes of the mesh must be of type AxisType.Auto; {', '.join(map(repr, explicit))} "
            "are not. Pass axis_types=(jax.sharding.AxisType.Auto, ...) to jax.make_mesh, whose "
            "default is another"
        )
