"""Accelerators to compile for, from their makers' published figures.

XLA's GPU compiler asks no driver: it reads a description of the chip. Its TPU compiler knows its
chips by name.
"""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """One kind of accelerator.

    Attributes:
        name: As in a topology, such as `"h100"`.
        title: As its maker names it.
        platform: JAX's name for what compiles for it: `"cuda"` or `"tpu"`.
        memory: Bytes of device memory.
        usable: The share of the memory that a program gets. On GPUs, JAX sets three quarters aside
            unless `XLA_PYTHON_CLIENT_MEM_FRACTION` says otherwise.
        description: For XLA's GPU compiler, what the chip is like.
    """

    name: str
    title: str
    platform: str
    memory: int
    usable: float
    description: str = ""

    def usable_bytes(self, share: float | None = None) -> int:
        """Bytes of the memory that a program gets, if it gets this share or the usual one.

        Raises:
            ValueError: If `share` is none.
        """
        share = self.usable if share is None else share
        if not 0 < share <= 1:
            raise ValueError(
                f"usable={share} must be above 0 and at most 1, the share of a chip's memory that "
                f"a program gets; {self.usable} is usual for {self.title}"
            )
        return int(share * self.memory)


def _gpu(
    name: str,
    title: str,
    *,
    memory: int,
    bandwidth: int,
    cores: int,
    fpus_per_core: int,
    clock_ghz: float,
    l2_cache: int,
    shared_memory: int,
    capability: int,
) -> Chip:
    """A data centre GPU by NVIDIA; sizes in bytes, rates in bytes per second."""
    description = f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {shared_memory}
  threads_per_core_limit: 2048
  core_count: {cores}
  fpus_per_core: {fpus_per_core}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth}
  l2_cache_size: {l2_cache}
  clock_rate_ghz: {clock_ghz}
  device_memory_size: {memory}
  shared_memory_per_block_optin: {shared_memory - 1024}
  cuda_compute_capability {{ major: {capability} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 }}
"""
    return Chip(
        name=name,
        title=title,
        platform="cuda",
        memory=memory,
        usable=0.75,
        description=description,
    )


def _tpu(name: str, title: str, *, memory: int) -> Chip:
    return Chip(name=name, title=title, platform="tpu", memory=memory, usable=0.95)


_HOPPER = {
    "cores": 132,
    "fpus_per_core": 128,
    "clock_ghz": 1.98,
    "l2_cache": 50 * 2**20,
    "shared_memory": 228 * 2**10,
    "capability": 9,
}

CHIPS = {
    chip.name: chip
    for chip in (
        _gpu(
            "a100",
            "NVIDIA A100 SXM4 80 GB",
            memory=85_198_045_184,
            bandwidth=2_039_000_000_000,
            cores=108,
            fpus_per_core=64,
            clock_ghz=1.41,
            l2_cache=40 * 2**20,
            shared_memory=164 * 2**10,
            capability=8,
        ),
        _gpu(
            "h100",
            "NVIDIA H100 SXM5 80 GB",
            memory=84_942_979_072,
            bandwidth=3_352_320_000_000,
            **_HOPPER,
        ),
        _gpu(
            "h200",
            "NVIDIA H200 SXM5 141 GB",
            memory=150_754_820_096,
            bandwidth=4_800_000_000_000,
            **_HOPPER,
        ),
        _gpu(
            "b200",
            "NVIDIA B200 180 GB",
            memory=180_000_000_000,
            bandwidth=8_000_000_000_000,
            cores=148,
            fpus_per_core=128,
            clock_ghz=1.965,
            l2_cache=126 * 2**20,
            shared_memory=228 * 2**10,
            capability=10,
        ),
        _tpu("v5e", "TPU v5e", memory=16 * 2**30),
        _tpu("v5p", "TPU v5p", memory=95 * 2**30),
        _tpu("v6e", "TPU v6e", memory=32 * 2**30),
    )
}
"""The chips that a topology may name."""
