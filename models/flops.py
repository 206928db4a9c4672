"""Model FLOPs of training, for an honest utilization (MFU).

Narayanan et al., 2021, Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM, arXiv 2104.04473, appendix; without their fourth pass for recomputation, as in
Korthikanti et al., 2022, Reducing Activation Recomputation in Large Transformer Models, arXiv
2205.05198. With batch `B`, sequence `s`, layers `L`, width `h`, vocabulary `V`, one iteration is

    72 B L s h^2 (1 + s / (6 h) + V / (12 h L))

that is, per token, `72 L h^2` for the linear layers (six FLOPs per weight: a multiplication and
an addition, forward and twice backward), `12 L s h` for attention and `6 V h` for the head.
Attention counts the whole square of queries and keys, although half of it is masked; norms,
softmax, activations and the look-up of embeddings count nothing.
"""

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
    query_width = config.num_heads * config.head_width
    group_width = config.key_value_heads * config.head_width
    attention_weights = config.width * (2 * query_width + 2 * group_width)
    num_mlp_matrices = 3 if config.activation == "swiglu" else 2
    mlp_weights = num_mlp_matrices * config.width * config.hidden_width
    head_weights = config.vocab_size * config.width
    weights = config.num_layers * (attention_weights + mlp_weights) + head_weights
    return 6 * weights + 12 * config.num_layers * sequence_length * query_width
