"""Models as plain Flax code, which knows nothing of pipelines."""

from models.config import GPTConfig as GPTConfig
from models.flops import flops_of_slice as flops_of_slice
from models.flops import flops_per_token as flops_per_token
from models.gpt import GPT as GPT
from models.shapes import SHAPES as SHAPES
from models.shapes import named_shape as named_shape
