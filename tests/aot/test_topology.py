"""Names of topologies, and what happens without their compiler."""

import importlib.metadata
import importlib.util
import re

import pytest

from jaxpipe.aot import CHIPS, MissingCompilerError, parse_topology
from jaxpipe.aot.topology import check_compiler
from tests.runtime.gpu_topology import h100_devices


@pytest.mark.parametrize(
    ("name", "num_devices"),
    [("h100:1x1x8", 8), ("b200:1x64x8", 512), ("v5e:2x4", 8), ("v5p:2x2x4", 16), ("v6e:1x1", 1)],
)
def test_names(name, num_devices):
    topology = parse_topology(name)
    assert topology.num_devices == num_devices
    assert str(topology) == name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "h10:1x1x8",
            "there is no chip 'h10' in topology 'h10:1x1x8'; did you mean 'h100'? Known:",
        ),
        ("8", "there is no chip '8' in topology '8'; Known: a100, h100"),
        (
            "h100:8",
            "a topology of GPUs is slices x hosts x devices of a host, such as h100:1x1x8; found "
            "'h100:8'; h100:1x1x8 is 8 of them in one host",
        ),
        ("a100:2x-4", "found 'a100:2x-4'; a100:1x1x8 is 8 of them in one host"),
        ("h100", "found 'h100'; h100:1x1x8 is"),
        ("v5e:2x2x2", "a topology of TPU v5e has 2 sizes, the chips along each side, such as"),
        ("v5p:4x4", "a topology of TPU v5p has 3 sizes, the chips along each side, such as v5p:2x"),
        ("v5e:0x4", "found 'v5e:0x4'"),
    ],
)
def test_names_of_nothing(name, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_topology(name)


@pytest.mark.parametrize(
    ("chip", "install"),
    [("h100", r"pip install jax-cuda13-plugin==\d+\.\d+"), ("v5e", "pip install libtpu$")],
)
def test_without_the_compiler(monkeypatch, chip, install):
    """What to install is said before anything else happens."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingCompilerError, match=f"needs no such chip .*: {install}"):
        check_compiler(CHIPS[chip])


def test_a_compiler_of_another_version(monkeypatch):
    """Jax would leave such a compiler alone, and say that there is no platform "cuda"."""
    versions = {"jaxlib": "1.2.3", "jax-cuda13-plugin": "1.2.2"}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: name == "jax_cuda13_plugin" or None
    )
    monkeypatch.setattr(importlib.metadata, "version", versions.__getitem__)
    message = (
        "takes XLA's cuda compiler in the version of jaxlib, 1.2.3; found jax_cuda13_plugin 1.2.2: "
        "pip install jax-cuda13-plugin==1.2.3"
    )
    with pytest.raises(MissingCompilerError, match=re.escape(message)):
        check_compiler(CHIPS["h100"])


def test_devices_of_a_topology():
    assert len(h100_devices(8)) == 8
    assert {device.platform for device in h100_devices(2)} == {"gpu"}
