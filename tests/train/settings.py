"""A run small enough for a test, as YAML and as a value."""

import pathlib
from typing import Any

import yaml

from train.config import Config, load_config

TINY: dict[str, Any] = {
    "name": "tiny",
    "model": {
        "vocab_size": 256,
        "max_sequence_length": 16,
        "num_layers": 4,
        "width": 8,
        "num_heads": 2,
        "dropout": 0.1,
    },
    "data": {"sequence_length": 16},
    "mesh": {"pipe": 4},
    "pipeline": {"num_microbatches": 2},
    "optimizer": {"learning_rate": 1e-2, "warmup_steps": 2},
    "training": {
        "steps": 8,
        "batch_size": 4,
        "log_every": 1,
        "eval_every": 4,
        "eval_batches": 2,
        "checkpoint_every": 3,
    },
}


def changed(**changes: Any) -> dict[str, Any]:
    """The tiny run with settings changed: `changed(model={"width": 16})`; None takes one out."""
    tree = {}
    for name, value in {**TINY, **changes}.items():
        if isinstance(value, dict) and isinstance(TINY.get(name), dict):
            value = {**TINY[name], **value}
        if value is not None:
            tree[name] = value
    return tree


def write_config(folder: pathlib.Path, **changes: Any) -> pathlib.Path:
    """The tiny run as a file."""
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(changed(**changes)), encoding="utf-8")
    return path


def tiny_config(folder: pathlib.Path, **changes: Any) -> Config:
    """The tiny run as a value."""
    return load_config(write_config(folder, **changes))


def write_text(folder: pathlib.Path, *, num_lines: int = 400) -> pathlib.Path:
    """A text with something to learn from."""
    path = folder / "text.txt"
    lines = (f"line {number} of the text, {number * number}\n" for number in range(num_lines))
    path.write_text("".join(lines), encoding="utf-8")
    return path
