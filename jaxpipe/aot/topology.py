"""Devices that are not there, to build a mesh on and to compile for.

h100:1x1x8      GPUs: slices x hosts x devices of a host
v5e:2x4         TPUs: chips along the sides of the torus
"""

import dataclasses
import difflib
import importlib.metadata
import importlib.util
import math
import os
import re

import jax
from jax.experimental.topologies import get_topology_desc

from jaxpipe.aot.chips import CHIPS, Chip

_PLUGINS = {
    "cuda": (("jax_cuda13_plugin", "jax_cuda12_plugin"), "jax-cuda13-plugin=={version}"),
    "tpu": (("libtpu",), "libtpu"),
}
"""For each platform, the modules that bring its compiler, and what to install."""


@dataclasses.dataclass(frozen=True)
class Topology:
    """A kind of chip, and how many of them are connected how.

    Attributes:
        chip: The kind.
        shape: The sizes in its name.
    """

    chip: Chip
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.chip.name}:{'x'.join(map(str, self.shape))}"

    @property
    def num_devices(self) -> int:
        """Devices in all."""
        return math.prod(self.shape)

    def devices(self) -> list[jax.Device]:
        """The devices, to compile for.

        Raises:
            MissingCompilerError: The package with the compiler for this platform is not installed.
        """
        check_compiler(self.chip)
        # Where the compiler for GPUs is installed, jax asks it for CUDA's libraries otherwise.
        os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
        if self.chip.platform == "tpu":
            os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
            os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
            os.environ.setdefault("TPU_ACCELERATOR_TYPE", self._accelerator_type())
            return list(get_topology_desc(platform="tpu", topology_name=str(self)).devices)
        found = get_topology_desc(
            platform="cuda",
            topology_name=self.chip.name,
            topology="x".join(map(str, self.shape)),
            target_config=self.chip.description,
        )
        return list(found.devices)

    def _accelerator_type(self) -> str:
        """What Google Cloud calls it."""
        names = {"v5e": "v5litepod", "v5p": "v5p", "v6e": "v6e"}
        cores = 2 if self.chip.name == "v5p" else 1
        return f"{names[self.chip.name]}-{cores * self.num_devices}"


class MissingCompilerError(RuntimeError):
    """The compiler for a chip is not installed."""


def parse_topology(name: str) -> Topology:
    """The topology of a name such as `"h100:1x1x8"` or `"v5e:2x4"`.

    Raises:
        ValueError: If the chip is unknown, or the shape is none of its kind.

    Example:
        >>> parse_topology("h100:1x4x8").num_devices
        32
        >>> parse_topology("h100:8")
        Traceback (most recent call last):
        ValueError: a topology of GPUs is slices x hosts ... found 'h100:8'; h100:1x1x8 ...
    """
    chip_name, _, shape_text = name.partition(":")
    if chip_name not in CHIPS:
        near = difflib.get_close_matches(chip_name.lower(), CHIPS, n=1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(
            f"there is no chip {chip_name!r} in topology {name!r}; {meant}Known: {', '.join(CHIPS)}"
        )
    chip = CHIPS[chip_name]
    shape = tuple(int(size) for size in re.findall(r"\d+", shape_text))
    is_well_formed = re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", shape_text) is not None
    total = math.prod(shape) if shape else 8
    if chip.platform == "cuda" and (not is_well_formed or len(shape) != 3):
        raise ValueError(
            "a topology of GPUs is slices x hosts x devices of a host, such as h100:1x1x8; found "
            f"{name!r}; {chip_name}:1x1x{total} is {total} of them in one host"
        )
    dims = 3 if chip_name == "v5p" else 2
    if chip.platform == "tpu" and (not is_well_formed or len(shape) != dims):
        example = "2x2x1" if dims == 3 else "2x4"
        raise ValueError(
            f"a topology of {chip.title} has {dims} sizes, the chips along each side, such as "
            f"{chip_name}:{example}; found {name!r}"
        )
    return Topology(chip, shape)


def check_compiler(chip: Chip) -> None:
    """Raises unless the compiler for a chip is installed, in the version that jax takes.

    Raises:
        MissingCompilerError: With the command that installs it.
    """
    modules, package = _PLUGINS[chip.platform]
    needed = importlib.metadata.version("jaxlib")
    install = f"pip install {package.format(version=needed)}"
    present = [module for module in modules if importlib.util.find_spec(module)]
    if not present:
        raise MissingCompilerError(
            f"compiling for {chip.title} takes XLA's {chip.platform} compiler, which needs no such "
            f"chip but is not installed: {install}"
        )
    if chip.platform == "cuda":
        versions = {module: _version(module) for module in present}
        if needed not in versions.values():
            found = ", ".join(f"{module} {version}" for module, version in versions.items())
            raise MissingCompilerError(
                f"compiling for {chip.title} takes XLA's cuda compiler in the version of jaxlib, "
                f"{needed}; found {found}: {install}"
            )


def _version(module: str) -> str:
    """The version of an installed plugin."""
    try:
        return importlib.metadata.version(module.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"
