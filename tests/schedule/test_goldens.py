"""Every golden file is reproduced by a generator or a transform, cell for cell or no worse."""

import re
from collections.abc import Callable

import pytest

from jaxpipe.schedule import (
    Costs,
    Schedule,
    fill_weights,
    insert_recompute,
    make_schedule,
    simulate,
    split_backward,
)
from tests.schedule.goldens import GOLDEN, assert_same_cells, golden, golden_names, sizes_of


def _option(name: str, letter: str) -> int:
    """The number behind a letter in a file name, such as 4 in `_g4_`."""
    match = re.search(rf"_{letter}(\d+)_", name)
    assert match is not None
    return int(match[1])


Make = Callable[[str, int, int, int], Schedule]

# The start of a file's name -> how to make the same schedule from name, P, v, M.
SAME: dict[str, Make] = {
    "torch_GPipe": lambda name, P, v, M: make_schedule("gpipe", P, M),
    "jaxpp_GPipe": lambda name, P, v, M: make_schedule("gpipe", P, M),
    "torch_1F1B": lambda name, P, v, M: make_schedule("1f1b", P, M),
    "sailsg_1F1B_": lambda name, P, v, M: make_schedule("1f1b", P, M),
    "megatron_1F1B": lambda name, P, v, M: make_schedule("1f1b", P, M),
    "jaxpp_Std1F1B": lambda name, P, v, M: make_schedule("1f1b", P, M),
    "jaxpp_Eager1F1B": lambda name, P, v, M: make_schedule("eager_1f1b", P, M),
    "torch_Interleaved1F1B": lambda name, P, v, M: interleaved(P, v, M),
    "jaxpp_Interleaved1F1B": lambda name, P, v, M: interleaved(P, v, M),
    "megatron_Interleaved_P": lambda name, P, v, M: interleaved(P, v, M),
    "sailsg_VPP": lambda name, P, v, M: interleaved(P, v, M),
    "megatron_Interleaved_N": lambda name, P, v, M: interleaved(
        P, v, M, group_size=_option(name, "N")
    ),
    # One more warm-up forward, so that each F can run beside a BW.
    "megatron_Interleaved_epoverlap": lambda name, P, v, M: interleaved(P, v, M, extra_warmup=1),
    "jaxpp_KimiK2": lambda name, P, v, M: interleaved(P, v, M, extra_warmup=1),
    "torch_LoopedBFS": lambda name, P, v, M: make_schedule("looped_bfs", P, M, num_chunks=v),
    "sailsg_GroupInterleaved_g": lambda name, P, v, M: split_backward(
        make_schedule("group_interleaved", P, M, num_chunks=v, group_size=_option(name, "g"))
    ),
    # The first chunk recomputes.
    "sailsg_GroupInterleaved_recompute1": lambda name, P, v, M: split_backward(
        insert_recompute(
            make_schedule("group_interleaved", P, M, num_chunks=v, staggered=True), range(P)
        )
    ),
    "sailsg_ZB1P": lambda name, P, v, M: make_schedule("zb1p", P, M),
    "jaxpp_ZeroBubble": lambda name, P, v, M: make_schedule("zb_h1", P, M),
    "torch_InterleavedZeroBubble": lambda name, P, v, M: make_schedule(
        "interleaved_zb", P, M, num_chunks=v
    ),
    # torch leaves the idle time of small M unfilled.
    "torch_ZBV": lambda name, P, v, M: make_schedule("zbv", P, M, fill=False),
    "sailsg_Seq1F1B": lambda name, P, v, M: make_schedule(
        "seq1f1b", P, M, num_slices=_option(name, "s")
    ),
    "own_TeraPipe": lambda name, P, v, M: make_schedule(
        "terapipe", P, M, num_slices=_option(name, "s")
    ),
    "chimera": lambda name, P, v, M: make_schedule("chimera", P, M),
    "bitpipe": lambda name, P, v, M: make_schedule("bitpipe", P, M),
    "deepseek_DualPipe_": lambda name, P, v, M: make_schedule("dualpipe", P, M),
    "deepseek_DualPipeV": lambda name, P, v, M: make_schedule("dualpipe_v", P, M),
    "torch_DualPipeV": lambda name, P, v, M: make_schedule("dualpipe_v", P, M),
    "own_WFill": lambda name, P, v, M: fill_weights(golden(name.removeprefix("own_WFill-"))),
}

# These come from a heuristic search, so there is no rule to reproduce: ours must be no worse. With
# the number of cells at which the two orders differ, so that a change does not go unnoticed.
NO_WORSE: dict[str, tuple[str, int]] = {
    "sailsg_1F1BV_P2_v2_M4": ("1f1b_v", 9),
    "sailsg_1F1BV_P4_v2_M4": ("1f1b_v", 5),
    "sailsg_1F1BV_P4_v2_M8": ("1f1b_v", 21),
    "sailsg_V-Half_P2_v2_M4": ("v_half", 15),
    "sailsg_V-Half_P4_v2_M2": ("v_half", 11),
    "sailsg_V-Half_P4_v2_M4": ("v_half", 55),
    "sailsg_V-Half_P4_v2_M8": ("v_half", 86),
    "sailsg_V-Min_P2_v2_M4": ("v_min", 26),
    "sailsg_V-Min_P4_v2_M2": ("v_min", 15),
    "sailsg_V-Min_P4_v2_M4": ("v_min", 24),
    "sailsg_V-Min_P4_v2_M8": ("v_min", 40),
    "sailsg_ZB1.5P_P2_v1_M4": ("zb1p5", 2),
    "sailsg_ZB1.5P_P4_v1_M8": ("zb1p5", 21),
    "sailsg_ZB2P_P2_v1_M4": ("zb2p", 6),
    "sailsg_ZB2P_P4_v1_M8": ("zb2p", 14),
    "sailsg_ZBV_P2_v2_M4": ("zbv", 8),
    "sailsg_ZBV_P4_v2_M4": ("zbv", 0),
    "sailsg_ZBV_P4_v2_M8": ("zbv", 40),
}


def interleaved(P: int, v: int, M: int, **options: int) -> Schedule:
    return make_schedule("interleaved_1f1b", P, M, num_chunks=v, **options)


def _rule(name: str) -> Make | None:
    rules = [make for start, make in SAME.items() if name.startswith(start)]
    assert len(rules) <= 1
    return rules[0] if rules else None


def test_every_golden_file_is_compared():
    compared = {name for name in golden_names() if _rule(name) is not None} | set(NO_WORSE)
    assert compared == set(golden_names())


@pytest.mark.parametrize("name", [name for name in golden_names() if _rule(name) is not None])
def test_equals_cell_for_cell(name):
    make = _rule(name)
    assert make is not None
    assert_same_cells(make(name, *sizes_of(name)), golden(name))


@pytest.mark.parametrize("name", NO_WORSE)
def test_is_no_worse_than_a_search(name):
    ours_name, num_different = NO_WORSE[name]
    num_devices, num_chunks, num_microbatches = sizes_of(name)
    ours, theirs = make_schedule(ours_name, num_devices, num_microbatches), golden(name)
    unit = float(num_chunks)
    costs = Costs(forward=unit, backward_input=unit, backward_weight=unit)
    our_time, their_time = simulate(ours, costs), simulate(theirs, costs)
    assert our_time.makespan <= their_time.makespan
    assert our_time.span <= their_time.span
    assert max(our_time.peak_live_to_weight_gradient) <= max(
        their_time.peak_live_to_weight_gradient
    )
    assert num_different == sum(
        our_cell != their_cell
        for our_row, their_row in zip(ours.rows, theirs.rows, strict=True)
        for our_cell, their_cell in zip(our_row, their_row, strict=True)
    )


@pytest.mark.parametrize(
    ("file", "schedule"),
    [
        ("PipeDream_P4_M8", make_schedule("pipedream", 4, 8)),
        ("2BW_m4_P4_M8", make_schedule("pipedream_2bw", 4, 8, update_every=4)),
    ],
    ids=["pipedream", "2bw"],
)
def test_asynchronous_orders_and_versions(file, schedule):
    lines = ["device,pos,action,microbatch,weight_version"]
    for device in range(schedule.num_devices):
        for position, action in enumerate(schedule.actions(device)):
            microbatch = "" if action.microbatch is None else action.microbatch
            lines.append(f"{device},{position},{action.kind},{microbatch},{action.version}")
    expected = (GOLDEN / "async" / f"{file}.csv").read_text(encoding="utf-8")
    assert lines == expected.split()
