"""Batches of token windows: shuffled anew every epoch, the same on every machine, resumable.

The corpus is cut into windows of `sequence_length + 1` bytes, each beginning with the last byte of
the one before, so that every byte but the first is a target exactly once per epoch. Grain shuffles
the windows by seed and epoch without holding a permutation, and can begin at any batch: what a
checkpoint keeps of the data is one number.
"""

from collections.abc import Iterator

import grain
import numpy as np

from train.user_error import UserError

Batch = dict[str, np.ndarray]
"""`tokens` and `targets` int32 and `weights` float32, each `[batch_size, sequence_length]`."""


class Windows:
    """Random access to the windows of a text.

    Args:
        text: The bytes.
        sequence_length: Tokens the model sees at once.
        origin: What the text is, for the error.

    Raises:
        UserError: The text is shorter than one window.
    """

    def __init__(self, text: bytes, sequence_length: int, *, origin: str) -> None:
        self._bytes = np.frombuffer(text, np.uint8)
        self._sequence_length = sequence_length
        self._num_windows = (len(text) - 1) // sequence_length
        if self._num_windows < 1:
            raise UserError(
                f"the {origin} has {len(text)} bytes, and one window of data.sequence_length="
                f"{sequence_length} needs {sequence_length + 1}; give more text, or set "
                f"data.sequence_length to at most {max(len(text) - 1, 1)}"
            )

    def __len__(self) -> int:
        return self._num_windows

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        start = int(index) * self._sequence_length
        window = self._bytes[start : start + self._sequence_length + 1].astype(np.int32)
        return {
            "tokens": window[:-1],
            "targets": window[1:],
            "weights": np.ones(self._sequence_length, np.float32),
        }


class TrainingBatches:
    """An endless, resumable stream of training batches.

    Args:
        windows: What to draw from.
        batch_size: Windows of a batch.
        seed: Decides the order.

    Raises:
        UserError: There are fewer windows than one batch takes.
    """

    def __init__(self, windows: Windows, *, batch_size: int, seed: int) -> None:
        if len(windows) < batch_size:
            raise UserError(
                f"the training text has {len(windows)} windows, too few for one batch of "
                f"training.batch_size={batch_size}; give more text, or set training.batch_size to "
                f"at most {len(windows)}"
            )
        dataset = (
            grain.MapDataset.source(windows)
            .seed(seed)
            .shuffle()
            .batch(batch_size, drop_remainder=True)
            .repeat()
        )
        # Windows are slices of memory: threads that read ahead would only cost.
        options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
        self._iterator = iter(dataset.to_iter_dataset(options))

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        return next(self._iterator)

    def position(self) -> dict[str, int]:
        """Where the stream is, as JSON."""
        return self._iterator.get_state()

    def resume(self, position: dict[str, int]) -> None:
        """Goes on from a `position`."""
        self._iterator.set_state(position)


def held_out_batches(windows: Windows, *, batch_size: int, num_batches: int) -> list[Batch]:
    """The same windows at every evaluation, spread evenly over the held-out text.

    Where the text has fewer windows than asked for, every window is taken once, and the last batch
    is filled up with windows of weight 0.
    """
    num_windows = min(len(windows), batch_size * num_batches)
    chosen = [index * len(windows) // num_windows for index in range(num_windows)]
    batches = []
    for start in range(0, num_windows, batch_size):
        rows = [windows[index] for index in chosen[start : start + batch_size]]
        empty = {name: np.zeros_like(value) for name, value in rows[0].items()}
        rows += [empty] * (batch_size - len(rows))
        batches.append({name: np.stack([row[name] for row in rows]) for name in rows[0]})
    return batches
