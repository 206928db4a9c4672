"""A configuration is right, or says everything that is wrong with it."""

import dataclasses

import pytest

from models.config import GPTConfig

SMALL = GPTConfig(vocab_size=16, max_sequence_length=8, num_layers=2, width=24, num_heads=6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 0}, "num_layers=0 must be a whole number, at least 1"),
        ({"num_layers": True}, "num_layers=True must be a whole number, at least 1"),
        ({"vocab_size": 2.5}, "vocab_size=2.5 must be a whole number, at least 1"),
        ({"max_sequence_length": -1}, "max_sequence_length=-1 must be a whole number"),
        ({"width": "8"}, "width='8' must be a whole number"),
        ({"num_heads": 0}, "num_heads=0 must be a whole number"),
        ({"num_kv_heads": 0}, "num_kv_heads=0 must be a whole number"),
        ({"head_dim": 0}, "head_dim=0 must be a whole number"),
        ({"mlp_width": 0}, "mlp_width=0 must be a whole number"),
        ({"dropout": 1.0}, "dropout=1.0 must be a number in [0, 1); 0 means no dropout"),
        ({"dropout": -0.1}, "dropout=-0.1 must be a number in [0, 1)"),
        ({"attention_dropout": "0.1"}, "attention_dropout='0.1' must be a number in [0, 1)"),
        ({"norm_epsilon": 0.0}, "norm_epsilon=0.0 must be a positive number; 1e-5 is usual"),
        ({"rotary_base": float("inf")}, "rotary_base=inf must be a positive number"),
        (
            {"norm": "rmsnom"},
            'norm=\'rmsnom\' is not one of "layernorm", "rmsnorm"; the nearest is "rmsnorm"',
        ),
        ({"positions": "rope"}, 'positions=\'rope\' is not one of "learned", "rotary"'),
        ({"activation": "glu"}, 'activation=\'glu\' is not one of "gelu", "swiglu"'),
        ({"attention": "fusd"}, 'the nearest is "fused"'),
        ({"dtype": "bf16"}, 'dtype=\'bf16\' is not one of "float32", "bfloat16", "float64"'),
        ({"param_dtype": None}, 'param_dtype=None is not one of "float32"'),
        (
            {"num_kv_heads": 4},
            "num_heads=6 is not a multiple of num_kv_heads=4, so query heads cannot share key and "
            "value heads evenly; use num_kv_heads=3 or 6",
        ),
        ({"num_kv_heads": 7}, "use num_kv_heads=6"),
        (
            {"width": 26},
            "width=26 is not a multiple of num_heads=6; use width=24 or 30, or give head_dim",
        ),
        ({"width": 4}, "width=4 is not a multiple of num_heads=6; use width=6, or give head_dim"),
        (
            {"head_dim": 3},
            "rotary positions turn pairs of features, but a head has 3 of them; use head_dim=4, "
            "or positions='learned'",
        ),
        (
            {"attention": "fused", "dtype": "float64"},
            "attention='fused' has a float32 softmax, which dtype='float64' would lose its digits "
            "in; use attention='einsum' or 'auto'",
        ),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_what_is_wrong_is_said(changes, message):
    with pytest.raises(ValueError, match="GPTConfig does not describe a model") as error:
        dataclasses.replace(SMALL, **changes)
    assert message in str(error.value)


def test_every_violation_is_listed():
    with pytest.raises(ValueError, match="num_layers=0") as error:
        dataclasses.replace(SMALL, num_layers=0, norm="rms", dropout=2.0)
    assert len(str(error.value).splitlines()) == 4


def test_sizes_that_follow_from_others():
    assert (SMALL.head_width, SMALL.key_value_heads) == (4, 6)
    own = dataclasses.replace(SMALL, head_dim=8, num_kv_heads=2, mlp_width=40)
    assert (own.head_width, own.key_value_heads, own.hidden_width) == (8, 2, 40)


@pytest.mark.parametrize(
    ("activation", "width", "expected"), [("gelu", 24, 96), ("swiglu", 24, 64), ("swiglu", 48, 128)]
)
def test_default_hidden_width(activation, width, expected):
    assert dataclasses.replace(SMALL, activation=activation, width=width).hidden_width == expected


def test_odd_heads_are_fine_without_rotary_positions():
    assert dataclasses.replace(SMALL, head_dim=3, positions="learned").head_width == 3


def test_configurations_are_values():
    assert hash(SMALL) == hash(dataclasses.replace(SMALL))
    with pytest.raises(dataclasses.FrozenInstanceError):
        SMALL.width = 3  # pyright: ignore[reportAttributeAccessIssue]
