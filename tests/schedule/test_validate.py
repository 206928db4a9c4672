"""Every rule of a schedule, broken on purpose."""

import dataclasses

import pytest

from jaxpipe.schedule import (
    Backward,
    Placement,
    ScheduleError,
    Violation,
    find_violations,
    from_csv,
    gpipe,
    one_f_one_b,
    validate,
)


def problems(text: str) -> list[str]:
    return [str(violation) for violation in find_violations(from_csv(text, check=False))]


HEADER = "# jaxpipe-schedule 1 devices=2 microbatches=2 placement=loop"

# What is changed in a good schedule, and all that must be found then.
CASES = {
    "missing forward": (
        f"{HEADER}\n0F0,0F1,0BW0,0BW1\n1F0,1BW0,1BW1\n",
        ["device 1: 1F1 is missing; add it to row 1"],
    ),
    "missing backward": (
        f"{HEADER}\n0F0,0F1,0BW0\n1F0,1BW0,1F1,1BW1\n",
        ["device 0: 0BW1 (or its B and W) is missing; add it to row 0"],
    ),
    "missing B": (
        f"{HEADER}\n0F0,0F1,0BW0,0W1\n1F0,1BW0,1F1,1BW1\n",
        ["device 0: 0B1 is missing; add it to row 0"],
    ),
    "missing W": (
        f"{HEADER}\n0F0,0F1,0BW0,0B1\n1F0,1BW0,1F1,1BW1\n",
        ["device 0: 0W1 is missing; add it to row 0"],
    ),
    "B besides BW": (
        f"{HEADER}\n0F0,0F1,0BW0,0BW1,0B1\n1F0,1BW0,1F1,1BW1\n",
        ["device 0, column 4: 0B1 repeats what 0BW1 does; remove it"],
    ),
    "W besides BW": (
        f"{HEADER}\n0F0,0F1,0BW0,0BW1,0W0\n1F0,1BW0,1F1,1BW1\n",
        ["device 0, column 4: 0W0 repeats what 0BW0 does; remove it"],
    ),
    "twice": (
        f"{HEADER}\n0F0,0F1,0BW0,0BW1,0BW1\n1F0,1BW0,1F1,1BW1\n",
        ["device 0, column 4: 0BW1 stands on device 0, column 3 already; remove one of the two"],
    ),
    "unknown ids": (
        f"{HEADER} stages=2\n0F0,0F2,5BW0,0BW1.1\n1F0,1BW0,1F1,1BW1\n",
        [
            "device 0, column 1: 0F2: there is no microbatch 2; use one from 0 to 1",
            "device 0, column 2: 5BW0: there is no stage 5; use one from 0 to 1",
            "device 0, column 3: 0BW1.1: there is no slice 1; use one from 0 to 0",
        ],
    ),
    "wrong device": (
        f"{HEADER}\n0F0,0F1,0BW0,0BW1,1BW1\n1F0,1BW0,1F1\n",
        ["device 0, column 4: 1BW1: its place is device 1; move it to row 1"],
    ),
    "unknown head": (
        f"{HEADER}\n0F0,0F1,0BW0,0BW1\n1F0,1BW0,1F1,1BW1,2H0\n",
        [
            "device 1, column 4: 2H0: there is no vocabulary part 2; use one from 0 to 1",
        ],
    ),
    "misplaced head": (
        f"{HEADER}\n0F0,0F1,0BW0,0BW1\n1F0,0H0,1BW0,1F1,1BW1\n",
        ["device 1, column 1: 0H0: its place is device 0; move it to row 0"],
    ),
    "missing head": (
        f"{HEADER}\n0F0,0H0,0F1,0H1,0BW0,0BW1\n1F0,1H0,1BW0,1F1,1BW1\n",
        ["device 1: 1H1 is missing; add it to row 1"],
    ),
    "head_of_two_passes_without_second": (
        f"{HEADER}\n0F0,0S0,0F1,0S1,0BW0,0BW1\n1F0,1S0,1BW0,1F1,1S1,1BW1\n",
        [
            f"device {part}: {part}H{microbatch} is missing; add it to row {part}"
            for microbatch in (0, 1)
            for part in (0, 1)
        ],
    ),
    "wrong order": (
        f"{HEADER}\n0F0,0BW1,0F1,0BW0\n1F0,1BW0,1F1,1BW1\n",
        ["device 0, column 1: 0BW1 stands before 0F1, which it waits for; move it behind column 2"],
    ),
    "W before B": (
        f"{HEADER}\n0F0,0F1,0BW0,0W1,0B1\n1F0,1BW0,1F1,1BW1\n",
        ["device 0, column 3: 0W1 stands before 0B1, which it waits for; move it behind column 4"],
    ),
    "R behind B": (
        f"{HEADER}\n0F0,0F1,0BW0,0R0,0BW1\n1F0,1BW0,1F1,1BW1\n",
        ["device 0, column 2: 0BW0 stands before 0R0, which it waits for; move it behind column 3"],
    ),
    "together": (
        f"{HEADER}\n0F0,0F1,0BW0,0BW1\n1F0,1BW0,(1F1;1BW1)OVERLAP\n",
        [
            "device 1, column 2: 1BW1 is issued together with 1F1, which it waits for; give it a "
            "cell of its own behind column 2"
        ],
    ),
    "slices": (
        "# jaxpipe-schedule 1 devices=1 microbatches=1 placement=loop slices=2\n"
        "0F0.1,0F0,0BW0,0BW0.1\n",
        [
            "device 0, column 0: 0F0.1 stands before 0F0, which it waits for; move it behind "
            "column 1",
            "device 0, column 2: 0BW0 stands before 0BW0.1, which it waits for; move it behind "
            "column 3",
        ],
    ),
    "cycle": (
        f"{HEADER}\n0F0,0BW0,0F1,0BW1\n1F1,1BW1,1F0,1BW0\n",
        [
            "device 0, column 1: devices wait for each other in a cycle, each for the next and "
            "the last for the first: 0BW0 (device 0, column 1) -> 1BW0 (device 1, column 3) -> "
            "1F1 (device 1, column 0) -> 0F1 (device 0, column 2); issue one of them earlier in "
            "its row"
        ],
    ),
    "frozen W": (
        f"{HEADER} backward=full,input\n0F0,0F1,0BW0,0BW1\n1F0,1BW0,1F1,1B1\n",
        [
            "device 1, column 1: 1BW0 computes weight gradients of frozen stage 1; remove it",
        ],
    ),
    "frozen without B": (
        f"{HEADER} backward=full,input\n0F0,0F1,0BW0,0BW1\n1F0,1B0,1F1\n",
        ["device 1: 1B1 is missing; add it to row 1"],
    ),
    "backward of nothing": (
        f"{HEADER} backward=none,full\n0F0,0F1,0BW0,0R1\n1F0,1BW0,1F1,1BW1\n",
        [
            "device 0, column 2: 0BW0 is not wanted: stage 0 has no backward; remove it",
            "device 0, column 3: 0R1 is not wanted: stage 0 has no backward; remove it",
        ],
    ),
    "update of a microbatch": (
        "# jaxpipe-schedule 1 devices=1 microbatches=1 placement=loop\n0F0,0BW0,0U\n",
        [
            "device 0, column 2: 0U: an update cannot make version 0; make version 1 or later",
        ],
    ),
    "update out of turn": (
        "# jaxpipe-schedule 1 devices=1 microbatches=1 placement=loop\n0F0,0BW0,0U@2\n",
        [
            "device 0, column 2: 0U@2 makes version 2 of stage 0 where version 1 comes next; "
            "number the updates of a stage 1, 2, 3, ...: 1"
        ],
    ),
    "unmade version": (
        "# jaxpipe-schedule 1 devices=1 microbatches=1 placement=loop\n0F0@1,0BW0@1\n",
        [
            "device 0, column 0: 0F0@1 reads version 1, which no update of stage 0 makes; read "
            "version 0, or add the update before it",
            "device 0, column 1: 0BW0@1 reads version 1, which no update of stage 0 makes; read "
            "version 0, or add the update before it",
        ],
    ),
    "other version": (
        "# jaxpipe-schedule 1 devices=1 microbatches=2 placement=loop\n"
        "0F0,0F1,0BW0,0U@1,0BW1@1,0U@2\n",
        [
            "device 0, column 4: 0BW1@1 reads version 1, but 0F1 read version 0; read version 0: "
            "a gradient belongs to the weights of its forward"
        ],
    ),
}


@pytest.mark.parametrize(("text", "expected"), CASES.values(), ids=CASES)
def test_every_violation_is_found_with_its_place(text, expected):
    assert problems(text) == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_microbatches": 0}, "schedule: num_microbatches is 0; it must be at least 1"),
        ({"rows": ()}, "schedule: rows has 0 entries for 2 devices; give one entry per device"),
        (
            {"backward": (Backward.FULL,)},
            "schedule: backward has 1 entries for 2 stages; give one entry per stage",
        ),
        (
            {"placement": Placement(name="x", paths=((0, 2),))},
            "schedule: path 0 of the placement puts stage 1 on device 2; use a device from 0 to 1",
        ),
        (
            {"placement": Placement(name="x", paths=((0, 1), (1,)), path_starts=(0, 1))},
            "schedule: path 1 of the placement has 1 stages and path 0 has 2; every path leads "
            "through all stages",
        ),
        (
            {"placement": Placement(name="x", paths=((0, 1),), path_starts=(1,))},
            "schedule: path_starts=(1,) of the placement does not share out the microbatches "
            "among 1 paths; give the first microbatch of each path, ascending from 0",
        ),
    ],
    ids=["sizes", "rows", "backward", "device", "path", "starts"],
)
def test_sizes_that_do_not_fit_are_found(change, message):
    schedule = dataclasses.replace(gpipe(2, 1), **change)
    assert [str(violation) for violation in find_violations(schedule)] == [message]


def test_an_empty_cell_is_found():
    schedule = dataclasses.replace(gpipe(1, 1), rows=(((), *gpipe(1, 1).rows[0]),))
    assert "device 0, column 0: the cell is empty; leave idle cells out" in str(
        find_violations(schedule)[0]
    )


def test_impossible_ids_that_no_file_can_hold_are_found():
    good = gpipe(1, 1)
    forward, backward = (cell[0] for cell in good.rows[0])
    bad = dataclasses.replace(
        good, rows=((((forward._replace(version=-1),), (backward._replace(microbatch=None),))),)
    )
    assert [str(violation) for violation in find_violations(bad)] == [
        "device 0, column 0: 0F0@-1: there is no version -1; use 0, the initial weights, or a "
        "later one",
        "device 0, column 1: 0BW: there is no microbatch None; use one from 0 to 0",
    ]


def test_the_cap_on_activations_is_checked():
    validate(one_f_one_b(3, 8), activation_cap=3)
    violations = find_violations(one_f_one_b(3, 8), activation_cap=2)
    assert violations == [
        Violation(
            device=0,
            problem="3 activations are alive at once, and the cap is 2",
            hint="issue backwards earlier, or raise the cap",
        )
    ]


def test_the_error_lists_all_violations():
    with pytest.raises(ScheduleError) as caught:
        validate(from_csv(f"{HEADER} backward=full,full\n0F0\n1F0,1BW0,1BW1\n", check=False))
    assert str(caught.value).startswith(
        "schedule 'csv' has 4 violations (devices and columns counted from 0):\n  device 0: 0BW0"
    )
    assert str(caught.value).count("\n") == len(caught.value.violations)
