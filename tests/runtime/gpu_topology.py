"""H100s to compile for, on machines that have none.

XLA's GPU compiler comes with the CUDA plugin and runs without a GPU, once it is told what the GPU
is like. It gives the very text and memory plan that the real machine would get.
"""

import importlib.util
import os

import jax
import pytest
from jax.experimental.topologies import get_topology_desc

# NVIDIA H100 SXM5 80 GB. Rates in bytes per second, sizes in bytes.
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84942979072
  shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 }
"""

PLUGIN = "jax-cuda13-plugin"


def has_gpu_compiler() -> bool:
    """Whether the plugin that brings XLA's GPU compiler is installed."""
    return importlib.util.find_spec("jax_cuda13_plugin") is not None


def h100_devices(count: int) -> list[jax.Device]:
    """That many H100s in one machine, to build a mesh on and to compile for."""
    if not has_gpu_compiler():
        pytest.skip(
            f"NOTHING IS CHECKED FOR GPUS: the package {PLUGIN} with XLA's GPU compiler is not "
            f"installed. It needs neither a GPU nor CUDA: pip install {PLUGIN}"
        )
    os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
    topology = get_topology_desc(
        platform="cuda", topology_name="h100", topology=f"1x1x{count}", target_config=H100
    )
    return list(topology.devices)
