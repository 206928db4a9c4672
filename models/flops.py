"""Model FLOPs of training, for an honest utilization (MFU).

Narayanan et al., 2021, Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM, arXiv 2104.04473, appendix; without their fourth pass for recomputation, as in
Korthikanti et al., 2022, Reducing Activation Recomputation in Large Transformer Models, arXiv
2205.05198. With batch `B`, sequence `s`, layers `L`, width `h`, vocabulary `V`, one iteration is

    72 B L s h^2 (1 + s / (6 h) + V / (12 h L))

that is, per token, `72 L h^2` for the linear layers (six FLOPs per weight: a multiplication and
an addition, forward and twice backward), `12 L s h` for attention and `6 V h` for the head.
Attention counts the whole square of queries and keys, although half of it is masked, or as many
keys as its window has; norms, softmax, activations, the scan of a recurrence and the look-up of
embeddings count nothing.
"""

import numpy as np

from models.config import GPTConfig


def flops_per_token(config: GPTConfig, sequence_length: int) -> int:
    """FLOPs of forward and backward per trained token: the formula above for any shape of model.

    It counts the weights that multiply, so that shared key and value heads, SwiGLU and odd widths
    are right too; work that is done twice (recomputation) is not counted twice.

    Raises:
        ValueError: `sequence_length` is below 1.

    Example:
        A step of `num_tokens` that took `seconds` on devices of `peak` FLOP/s together has
        `MFU = num_tokens * flops_per_token(config, sequence_length) / (seconds * peak)`.
    """
    if sequence_length < 1:
        raise ValueError(f"sequence_length={sequence_length} must be at least 1")
    num_keys = min(sequence_length, config.attention_window or sequence_length)
    weights = config.num_layers * _block_weights(config) + config.vocab_size * config.width
    return 6 * weights + 12 * config.num_layers * num_keys * _attention_width(config)


def flops_of_slice(config: GPTConfig, lengths: np.ndarray, contexts: np.ndarray) -> np.ndarray:
    """FLOPs of one block's forward on consecutive tokens that follow others.

    Scores are computed for all tokens of the slice with all of it and before it, or with what a
    window leaves of that: the lower triangle of the sequence, and half a square for each slice.

    Args:
        config: The model.
        lengths: Tokens of slices.
        contexts: Tokens before each.

    Example:
        >>> config = GPTConfig(
        ...     vocab_size=256, max_sequence_length=128, num_layers=4, width=64, num_heads=4
        ... )
        >>> whole = flops_of_slice(config, np.array([128]), np.array([0]))
        >>> cut = flops_of_slice(config, np.array([64, 64]), np.array([0, 64]))
        >>> int(whole.sum() - cut.sum()) == 4 * 64 * 64 * 64
        True
    """
    before = np.minimum(contexts, (config.attention_window or np.inf) - 1)
    attention = 4 * _attention_width(config) * (before + lengths)
    return lengths * (2.0 * _block_weights(config) + attention)


def _attention_width(config: GPTConfig) -> int:
    """Features of all query heads; a recurrence has none."""
    return config.num_heads * config.head_width if config.mixer == "attention" else 0


def _block_weights(config: GPTConfig) -> int:
    """The weights of one block that multiply."""
    group_width = config.key_value_heads * config.head_width
    mixer = config.width * 2 * (_attention_width(config) + group_width)
    if config.mixer == "recurrence":
        mixer = 4 * config.width**2
    num_mlp_matrices = 3 if config.activation == "swiglu" else 2
    return mixer + num_mlp_matrices * config.width * config.hidden_width
