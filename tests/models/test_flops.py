"""The FLOP count against the published formula and a published utilization."""

import pytest

from models.config import GPTConfig
from models.flops import flops_per_token
from models.shapes import SHAPES


@pytest.mark.parametrize("name", ["gpt2_small", "gpt2_medium", "gpt2_large", "gpt2_xl"])
@pytest.mark.parametrize("length", [1, 1024])
def test_it_is_the_published_formula(name, length):
    config = SHAPES[name]
    L, h, V, s = config.num_layers, config.width, config.vocab_size, length
    expected = 72 * L * h**2 * (1 + s / (6 * h) + V / (12 * h * L))
    assert flops_per_token(config, s) == pytest.approx(expected, rel=1e-12)


def test_the_utilization_that_a_paper_reports():
    # 175B parameters on 64 A100 (312 TFLOP/s each), batch 64 in 13.75 s: 51.4 %.
    config = GPTConfig(
        vocab_size=51_200,
        max_sequence_length=2048,
        num_layers=96,
        width=12_288,
        num_heads=96,
        activation="gelu",
    )
    flops = 64 * 2048 * flops_per_token(config, 2048)
    assert flops / (13.75 * 64 * 312e12) == pytest.approx(0.514, abs=0.0005)


def test_shared_heads_and_gates_count_the_weights_there_are():
    config = SHAPES["llama3_8b"]
    # All parameters but the norms and the embedding multiply.
    weights = 8_030_261_248 - 65 * 4096 - 128_256 * 4096
    assert flops_per_token(config, 8192) == 6 * weights + 12 * 32 * 8192 * 4096


def test_sequences_have_tokens():
    with pytest.raises(ValueError, match="sequence_length=0 must be at least 1"):
        flops_per_token(SHAPES["gpt2_small"], 0)
