"""Meshes for pipelines."""

import re

import jax
import pytest
from jax.sharding import AxisType

from jaxpipe.runtime.mesh import check_mesh, make_mesh
from tests.runtime.as_users_call import unchecked


def test_stages_are_the_outer_axis():
    mesh = make_mesh(4, 2)
    assert dict(mesh.shape) == {"pipe": 4, "data": 2}
    assert [device.id for device in mesh.devices[0]] == [0, 1]
    check_mesh(mesh)


def test_other_devices():
    devices = jax.devices()[4:6]
    assert list(make_mesh(2, devices=devices).devices.ravel()) == devices


def test_too_few_devices_says_how_to_simulate_them():
    message = (
        "a mesh of pipe=16 x data=2 takes 32 devices; found 8 cpu device(s). On CPU, devices can "
        "be simulated: set the environment variable JAX_NUM_CPU_DEVICES=32, or call "
        'jax.config.update("jax_num_cpu_devices", 32) before the first use of JAX'
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        make_mesh(16, 2)


def test_too_few_devices_of_another_kind():
    message = (
        "a mesh of pipe=2 x data=1 takes 2 devices; found 0 no device(s). Use a pipeline of at "
        "most 1 devices, or simulate them on CPU with JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=2"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        make_mesh(2, devices=[])


@pytest.mark.parametrize(
    ("sizes", "error", "message"),
    [
        ((0, 1), ValueError, "pipe must be at least 1, but is 0"),
        ((2, -1), ValueError, "data must be at least 1, but is -1"),
    ],
)
def test_sizes(sizes, error, message):
    with pytest.raises(error, match=message):
        make_mesh(*sizes)


@pytest.mark.parametrize(
    ("axes", "found"),
    [
        (("stages", "data"), "'stages' (4), 'data' (2)"),
        (("data", "tensor"), "'data' (4), 'tensor' (2)"),
    ],
)
def test_a_mesh_without_pipe(axes, found):
    mesh = jax.make_mesh((4, 2), axes, axis_types=(AxisType.Auto,) * 2)
    message = f"the mesh must have an axis named 'pipe', along which the stages lie; found {found}"
    with pytest.raises(ValueError, match=re.escape(message)):
        check_mesh(mesh)


def test_a_mesh_with_explicit_axes():
    mesh = jax.make_mesh((4, 2), ("pipe", "data"), axis_types=(AxisType.Auto, AxisType.Explicit))
    message = "all axes of the mesh must be of type AxisType.Auto; 'data' are not. Pass axis_types="
    with pytest.raises(ValueError, match=re.escape(message)):
        check_mesh(mesh)


def test_what_is_no_mesh():
    message = "mesh must be a jax.sharding.Mesh, such as jaxpipe.make_mesh(pipe=4); found (4, 2)"
    with pytest.raises(TypeError, match=re.escape(message)):
        unchecked(check_mesh)((4, 2))
