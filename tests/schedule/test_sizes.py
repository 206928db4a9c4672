"""What is no size."""

import pytest

from jaxpipe.schedule.sizes import check_sizes


@pytest.mark.parametrize(
    ("size", "error", "message"),
    [
        (4.0, TypeError, "but is 4.0 of type float; use num_devices=4 or more"),
        (0.5, TypeError, "but is 0.5 of type float; use num_devices=1 or more"),
        (True, TypeError, "but is True of type bool"),
        ("4", TypeError, "but is '4' of type str"),
        (None, TypeError, "but is None of type NoneType"),
        (0, ValueError, "must be at least 1, but is 0; use num_devices=1 or more"),
        (-2, ValueError, "must be at least 1, but is -2"),
    ],
    ids=repr,
)
def test_what_is_no_size_is_refused(size, error, message):
    with pytest.raises(error, match=f"num_devices must be.*{message}|num_devices {message}"):
        check_sizes(num_devices=size)


def test_sizes_of_one_and_more_pass():
    check_sizes(num_devices=1, num_microbatches=10**6)
