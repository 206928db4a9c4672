import pytest

from train.config import MeshConfig
from train.devices import build_mesh
from train.user_error import UserError


def test_the_mesh_has_the_axes_of_a_pipeline():
    mesh = build_mesh(MeshConfig(pipe=3, data=2))
    assert dict(mesh.shape) == {"pipe": 3, "data": 2}


def test_too_few_devices_are_answered_with_how_to_simulate_them():
    with pytest.raises(UserError) as caught:
        build_mesh(MeshConfig(pipe=8, data=2))
    message = str(caught.value)
    assert "takes 16 devices; found 8" in message
    assert message.endswith("--mesh.simulated_devices 16")
