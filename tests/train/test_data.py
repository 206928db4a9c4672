import numpy as np
import pytest

from train.data import TrainingBatches, Windows, held_out_batches
from train.user_error import UserError

TEXT = bytes(range(201))


def windows(length=4, text=TEXT):
    return Windows(text, length, origin="training text")


def starts(batches, num_batches):
    return [next(batches)["tokens"][:, 0].tolist() for _ in range(num_batches)]


def test_every_byte_but_the_first_is_a_target_once():
    view = windows()
    assert len(view) == 50
    tokens = np.concatenate([view[index]["tokens"] for index in range(len(view))])
    targets = np.concatenate([view[index]["targets"] for index in range(len(view))])
    np.testing.assert_array_equal(tokens, np.arange(200))
    np.testing.assert_array_equal(targets, np.arange(1, 201))


def test_a_batch_has_the_shapes_and_dtypes_that_the_model_wants():
    batch = next(TrainingBatches(windows(), batch_size=3, seed=0))
    assert {name: (value.shape, value.dtype.name) for name, value in batch.items()} == {
        "tokens": ((3, 4), "int32"),
        "targets": ((3, 4), "int32"),
        "weights": ((3, 4), "float32"),
    }
    assert (batch["weights"] == 1).all()


def test_an_epoch_takes_every_window_once_and_the_next_in_another_order():
    batches = TrainingBatches(windows(), batch_size=10, seed=0)
    first, second = (np.concatenate(starts(batches, 5)).tolist() for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(0, 200, 4))
    assert first != second
    assert first != sorted(first)


def test_the_order_follows_from_the_seed_alone():
    orders = [starts(TrainingBatches(windows(), batch_size=8, seed=seed), 9) for seed in (1, 1, 2)]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]


@pytest.mark.parametrize("done", [0, 3, 6, 17], ids=lambda done: f"after-{done}")
def test_a_stream_goes_on_where_it_was(done):
    batches = TrainingBatches(windows(), batch_size=8, seed=5)
    starts(batches, done)
    position = batches.position()
    again = TrainingBatches(windows(), batch_size=8, seed=5)
    again.resume(position)
    assert starts(again, 12) == starts(batches, 12)


def test_held_out_windows_are_spread_evenly_and_always_the_same():
    first, again = (held_out_batches(windows(), batch_size=5, num_batches=2) for _ in range(2))
    assert np.concatenate([batch["tokens"][:, 0] for batch in first]).tolist() == list(
        range(0, 200, 20)
    )
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one["targets"], other["targets"])


def test_a_short_held_out_text_is_taken_once_and_filled_up_with_weight_zero():
    batches = held_out_batches(windows(text=TEXT[:33]), batch_size=5, num_batches=9)
    assert [batch["weights"].sum() for batch in batches] == [20, 12]
    assert [batch["tokens"].shape for batch in batches] == [(5, 4), (5, 4)]


def test_a_text_shorter_than_a_window_is_refused():
    with pytest.raises(UserError) as caught:
        windows(length=300)
    assert str(caught.value) == (
        "the training text has 201 bytes, and one window of data.sequence_length=300 needs 301; "
        "give more text, or set data.sequence_length to at most 200"
    )


def test_a_text_shorter_than_a_batch_is_refused():
    with pytest.raises(UserError, match="has 50 windows, too few for one batch of "):
        TrainingBatches(windows(), batch_size=51, seed=0)
