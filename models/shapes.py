"""Published models as configurations, by name.

GPT-2: Radford et al., 2019, Language Models are Unsupervised Multitask Learners. Llama 2: Touvron
et al., 2023, arXiv 2307.09288. Llama 3: Grattafiori et al., 2024, arXiv 2407.21783 (the 3.0
models, without the stretched rotary frequencies of 3.1).
"""

import dataclasses
import difflib
from collections.abc import Mapping
from types import MappingProxyType

from models.config import GPTConfig


def _gpt2(*, num_layers: int, width: int, num_heads: int) -> GPTConfig:
    return GPTConfig(
        vocab_size=50_257,
        max_sequence_length=1024,
        num_layers=num_layers,
        width=width,
        num_heads=num_heads,
        norm="layernorm",
        positions="learned",
        activation="gelu",
        use_bias=True,
        tied_head=True,
    )


def _llama2(
    *, num_layers: int, width: int, num_heads: int, mlp_width: int, num_kv_heads: int | None = None
) -> GPTConfig:
    return GPTConfig(
        vocab_size=32_000,
        max_sequence_length=4096,
        num_layers=num_layers,
        width=width,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        mlp_width=mlp_width,
        tied_head=False,
        dtype="bfloat16",
    )


def _llama3(*, num_layers: int, width: int, num_heads: int, mlp_width: int) -> GPTConfig:
    return GPTConfig(
        vocab_size=128_256,
        max_sequence_length=8192,
        num_layers=num_layers,
        width=width,
        num_heads=num_heads,
        num_kv_heads=8,
        mlp_width=mlp_width,
        rotary_base=500_000.0,
        tied_head=False,
        dtype="bfloat16",
    )


SHAPES: Mapping[str, GPTConfig] = MappingProxyType(
    {
        "gpt2_small": _gpt2(num_layers=12, width=768, num_heads=12),
        "gpt2_medium": _gpt2(num_layers=24, width=1024, num_heads=16),
        "gpt2_large": _gpt2(num_layers=36, width=1280, num_heads=20),
        "gpt2_xl": _gpt2(num_layers=48, width=1600, num_heads=25),
        "llama2_7b": _llama2(num_layers=32, width=4096, num_heads=32, mlp_width=11_008),
        "llama2_13b": _llama2(num_layers=40, width=5120, num_heads=40, mlp_width=13_824),
        "llama2_70b": _llama2(
            num_layers=80, width=8192, num_heads=64, mlp_width=28_672, num_kv_heads=8
        ),
        "llama3_8b": _llama3(num_layers=32, width=4096, num_heads=32, mlp_width=14_336),
        "llama3_70b": _llama3(num_layers=80, width=8192, num_heads=64, mlp_width=28_672),
    }
)
"""Every named shape; `dataclasses.replace` changes single fields."""


def named_shape(name: str, **changes: object) -> GPTConfig:
    """The configuration of a published model, with some fields changed.

    Raises:
        ValueError: No shape has this name.
        TypeError: A changed field does not exist.

    Example:
        >>> named_shape("gpt2_small", dropout=0.1).width
        768
    """
    if name not in SHAPES:
        nearest = difflib.get_close_matches(name, SHAPES, n=1, cutoff=0.0)[0]
        raise ValueError(
            f'no model shape is named "{name}"; the nearest is "{nearest}" of {", ".join(SHAPES)}'
        )
    return dataclasses.replace(SHAPES[name], **changes)  # pyright: ignore[reportArgumentType]
