"""What a generator refuses, with the rule, the values and the nearest fix."""

import pytest

from jaxpipe.schedule import make_schedule


@pytest.mark.parametrize(
    ("name", "sizes", "options", "message"),
    [
        (
            "interleaved_1f1b",
            (4, 8),
            {"group_size": 3},
            "group_size=3 is smaller than num_devices=4: .* use group_size=4 or more, or schedule "
            "'group_interleaved'",
        ),
        (
            "interleaved_1f1b",
            (4, 8),
            {"num_chunks": 0},
            "num_chunks must be at least 1, but is 0",
        ),
        (
            "interleaved_1f1b",
            (4, 8),
            {"extra_warmup": -1},
            "extra_warmup=-1 is negative; use extra_warmup=0",
        ),
        (
            "group_interleaved",
            (8, 8),
            {"group_size": 3},
            "group_size=3 is not between num_devices / 2 and num_devices=8: .* use 4 to 8",
        ),
        (
            "group_interleaved",
            (8, 8),
            {"group_size": 9},
            "group_size=9 is not between num_devices / 2 and num_devices=8: .* use 4 to 8",
        ),
        ("seq1f1b", (4, 8), {"num_slices": 0}, "num_slices must be at least 1, but is 0"),
        ("hanayo", (4, 8), {"num_waves": 0}, "num_waves must be at least 1, but is 0"),
        (
            "dualpipe",
            (3, 8),
            {},
            r"dualpipe turns between the two middle devices, so num_devices=3 must be even \(or 1\)"
            "; use 2 or 4 devices, or 'dualpipe_v'",
        ),
        (
            "dualpipe",
            (4, 9),
            {},
            "dualpipe needs an even number of microbatches and at least two microbatches per "
            "device, .* num_microbatches=9 on num_devices=4; use num_microbatches=10",
        ),
        (
            "dualpipe_v",
            (4, 7),
            {},
            "dualpipe_v needs at least two microbatches per device, .* num_microbatches=7 on "
            "num_devices=4; use num_microbatches=8, or schedule 'zb_h1'",
        ),
        (
            "pipedream_2bw",
            (4, 8),
            {"update_every": 3},
            "update_every=3 is below num_devices=4: .* use update_every=4 or more, or schedule "
            "'pipedream'",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_what_the_mathematics_forbids_is_refused(name, sizes, options, message):
    with pytest.raises(ValueError, match=message):
        make_schedule(name, *sizes, **options)
