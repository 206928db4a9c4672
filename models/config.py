"""What a GPT looks like: its sizes, its kinds of layers, its dtypes, all checked when written."""

import dataclasses
import difflib
import typing
from typing import Literal

Norm = Literal["layernorm", "rmsnorm"]
Positions = Literal["learned", "rotary"]
Activation = Literal["gelu", "swiglu"]
Mixer = Literal["attention", "recurrence"]
AttentionChoice = Literal["auto", "einsum", "fused"]
DType = Literal["float32", "bfloat16", "float64"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GPTConfig:
    """The shape of a decoder-only transformer.

    The defaults are those of a small modern model: RMSNorm, rotary positions, SwiGLU, no biases.
    `models.shapes` holds GPT-2 and Llama.

    Attributes:
        vocab_size: Rows of the embedding and of the head.
        max_sequence_length: Rows of the table of learned positions; rotary positions reach
            further, but a model is trained for this length.
        num_layers: How many blocks.
        width: Features of a token between the blocks.
        num_heads: Query heads of each attention layer.
        num_kv_heads: Key and value heads, each shared by `num_heads / num_kv_heads` query heads;
            None for one per query head.
        head_dim: Features of a head; None for `width / num_heads`.
        mlp_width: Features inside the MLP; None for `4 * width` with GELU and `8 / 3 * width`,
            rounded up to a multiple of 64, with SwiGLU (about as many weights).
        norm: What stands before attention, MLP and head.
        norm_epsilon: Added to the variance, so that a token of zeros stays finite.
        positions: A learned vector per position, or queries and keys turned by their position.
        rotary_base: The slowest rotary frequency is about one turn in `2 pi rotary_base` tokens.
        activation: GELU (its tanh form, as in GPT-2), or SwiGLU.
        use_bias: Whether linear layers and LayerNorm have biases. The head never has one.
        tied_head: Whether the head's weights are the embedding's.
        dropout: Rate after the embedding, the attention and the MLP; 0 by default, since a model
            that sees its text once does not overfit.
        attention_dropout: Rate on the attention probabilities. It keeps the whole score matrix
            in memory, which fused attention would avoid.
        attention: Which program computes attention: see `models.attention.choose_program`.
        attention_window: How many tokens a token sees, itself included; None for all before it.
        mixer: What mixes tokens: attention, or a gated linear recurrence
            (`models.recurrence`), which has no heads and uses no positions.
        dtype: In which dtype the model computes.
        param_dtype: In which dtype the weights are kept.

    Raises:
        ValueError: Lists everything that is wrong, with the values found and what would do.

    Example:
        >>> GPTConfig(
        ...     vocab_size=256, max_sequence_length=128, num_layers=4, width=64, num_heads=4
        ... ).head_width
        16
    """

    vocab_size: int
    max_sequence_length: int
    num_layers: int
    width: int
    num_heads: int
    num_kv_heads: int | None = None
    head_dim: int | None = None
    mlp_width: int | None = None
    norm: Norm = "rmsnorm"
    norm_epsilon: float = 1e-5
    positions: Positions = "rotary"
    rotary_base: float = 10_000.0
    activation: Activation = "swiglu"
    use_bias: bool = False
    tied_head: bool = True
    dropout: float = 0.0
    attention_dropout: float = 0.0
    attention: AttentionChoice = "auto"
    attention_window: int | None = None
    mixer: Mixer = "attention"
    dtype: DType = "float32"
    param_dtype: DType = "float32"

    def __post_init__(self) -> None:
        """Checks every field, then how they fit together."""
        problems = _field_problems(self) or _fit_problems(self)
        if problems:
            raise ValueError("\n".join(["GPTConfig does not describe a model:", *problems]))

    @property
    def head_width(self) -> int:
        """Features of one attention head."""
        return self.width // self.num_heads if self.head_dim is None else self.head_dim

    @property
    def key_value_heads(self) -> int:
        """How many heads keys and values have."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def hidden_width(self) -> int:
        """Features inside the MLP."""
        if self.mlp_width is not None:
            return self.mlp_width
        if self.activation == "gelu":
            return 4 * self.width
        return -(-8 * self.width // (3 * 64)) * 64


def _field_problems(config: GPTConfig) -> list[str]:
    """What is wrong with single fields."""
    problems = []
    for name in ("vocab_size", "max_sequence_length", "num_layers", "width", "num_heads"):
        problems += _size_problems(name, getattr(config, name))
    for name in ("num_kv_heads", "head_dim", "mlp_width", "attention_window"):
        if getattr(config, name) is not None:
            problems += _size_problems(name, getattr(config, name))
    for name in ("dropout", "attention_dropout"):
        rate = getattr(config, name)
        if not isinstance(rate, int | float) or not 0 <= rate < 1:
            problems.append(f"- {name}={rate!r} must be a number in [0, 1); 0 means no dropout")
    for name, usual in (("norm_epsilon", "1e-5"), ("rotary_base", "10000")):
        value = getattr(config, name)
        if not isinstance(value, int | float) or not 0 < value < float("inf"):
            problems.append(f"- {name}={value!r} must be a positive number; {usual} is usual")
    for name, choices in (
        ("norm", Norm),
        ("positions", Positions),
        ("activation", Activation),
        ("attention", AttentionChoice),
        ("mixer", Mixer),
        ("dtype", DType),
        ("param_dtype", DType),
    ):
        problems += _choice_problems(name, getattr(config, name), typing.get_args(choices))
    return problems


def _size_problems(name: str, value: object) -> list[str]:
    # True is an int in Python, but `num_layers: true` in a config file is a mistake.
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return []
    return [f"- {name}={value!r} must be a whole number, at least 1"]


def _choice_problems(name: str, value: object, choices: tuple[str, ...]) -> list[str]:
    if value in choices:
        return []
    known = ", ".join(f'"{choice}"' for choice in choices)
    nearest = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.0)[0]
    return [f'- {name}={value!r} is not one of {known}; the nearest is "{nearest}"']


def _fit_problems(config: GPTConfig) -> list[str]:
    """What is wrong between fields that are right by themselves."""
    problems = []
    heads, groups, width = config.num_heads, config.key_value_heads, config.width
    if heads % groups:
        divisors = [n for n in range(1, heads + 1) if heads % n == 0]
        below = max(n for n in divisors if n < groups or n == 1)
        above = min((n for n in divisors if n > groups), default=heads)
        nearest = " or ".join(str(n) for n in sorted({below, above}))
        problems.append(
            f"- num_heads={heads} is not a multiple of num_kv_heads={groups}, so query heads "
            f"cannot share key and value heads evenly; use num_kv_heads={nearest}"
        )
    if config.head_dim is None and width % heads:
        nearest = " or ".join(
            str(n) for n in (width // heads * heads, -(-width // heads) * heads) if n
        )
        problems.append(
            f"- width={width} is not a multiple of num_heads={heads}; use width={nearest}, "
            "or give head_dim"
        )
    elif config.positions == "rotary" and config.head_width % 2:
        problems.append(
            f"- rotary positions turn pairs of features, but a head has {config.head_width} of "
            f"them; use head_dim={config.head_width + 1}, or positions='learned'"
        )
    if config.mixer == "recurrence":
        attention_alone = {"attention_dropout": 0.0, "attention_window": None}
        problems += [
            f"- {name}={getattr(config, name)!r} is of attention, but mixer='recurrence' has none; "
            f"leave it out, or use mixer='attention'"
            for name, unset in attention_alone.items()
            if getattr(config, name) != unset
        ]
    if config.attention == "fused" and config.dtype == "float64":
        problems.append(
            "- attention='fused' has a float32 softmax, which dtype='float64' would lose its "
            "digits in; use attention='einsum' or 'auto'"
        )
    return problems
