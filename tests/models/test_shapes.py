"""Published models have the published number of parameters."""

import math

import jax
import pytest
from flax import nnx

from models.config import GPTConfig
from models.gpt import GPT
from models.shapes import SHAPES, named_shape


def count_parameters(config: GPTConfig) -> int:
    """How many weights the model has, without making one."""
    abstract = nnx.eval_shape(lambda: GPT(config, rngs=nnx.Rngs(0)))
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nnx.state(abstract, nnx.Param)))


PUBLISHED_COUNTS = {
    "gpt2_small": 124_439_808,
    "gpt2_medium": 354_823_168,
    "gpt2_large": 774_030_080,
    "gpt2_xl": 1_557_611_200,
    "llama2_7b": 6_738_415_616,
    "llama2_13b": 13_015_864_320,
    "llama2_70b": 68_976_648_192,
    "llama3_8b": 8_030_261_248,
    "llama3_70b": 70_553_706_496,
}


@pytest.mark.parametrize("name", SHAPES)
def test_parameter_counts(name):
    assert count_parameters(SHAPES[name]) == PUBLISHED_COUNTS[name]


def test_fields_can_be_changed():
    assert named_shape("gpt2_small", dropout=0.1).dropout == 0.1
    assert named_shape("gpt2_small") == SHAPES["gpt2_small"]


def test_unknown_names_and_fields_are_refused():
    with pytest.raises(ValueError, match='no model shape is named "gpt2"; the nearest is "gpt2_'):
        named_shape("gpt2")
    with pytest.raises(TypeError, match="depth"):
        named_shape("gpt2_small", depth=3)
