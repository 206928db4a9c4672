"""Times, idle times, peaks and messages."""

import pytest

from jaxpipe.schedule import Action, Costs, Kind, from_csv, gpipe, one_f_one_b, simulate
from tests.schedule.goldens import golden, golden_names, summary


@pytest.mark.parametrize("name", golden_names())
def test_reproduces_the_golden_numbers(name):
    """Times, idle times, peaks and messages of all golden files, ours and others'."""
    schedule = golden(name)
    expected = summary()[name]
    # The summary counts 1 for an action of whatever size.
    unit = float(schedule.num_chunks * schedule.num_slices)
    costs = Costs(forward=unit, backward_input=unit, backward_weight=unit, recompute=unit)
    simulation = simulate(schedule, costs)
    assert simulation.makespan == pytest.approx(float(expected["makespan_F1_B1_W1"]))
    assert max(simulation.idle) / simulation.makespan == pytest.approx(
        float(expected["bubble_max"]), abs=5.1e-5
    )
    assert simulation.inner_idle == pytest.approx(numbers(expected["inner_bubble"]))
    assert simulation.peak_live_to_input_gradient == numbers(expected["peak_live_F_to_B"])
    assert simulation.peak_live_to_weight_gradient == numbers(expected["peak_live_F_to_W"])
    assert simulation.messages.forward == numbers(expected["sends_fwd"])
    assert simulation.messages.backward == numbers(expected["sends_bwd"])
    assert sum(simulation.messages.local) == int(expected["local_handoffs"])


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split())


OVERLAPPING = [
    name
    for name in golden_names()
    if summary()[name]["makespan_overlap_FB2"]
    # There a task of F and BW may be of one microbatch and count 2, although BW needs what F makes.
    and not name.startswith("jaxpp")
]


@pytest.mark.parametrize("name", OVERLAPPING)
def test_reproduces_the_golden_times_of_overlapped_pairs(name):
    schedule = golden(name)
    unit = float(schedule.num_chunks)
    hidden = Costs(forward=unit, backward_input=unit, backward_weight=unit, overlap=1.0)
    expected = float(summary()[name]["makespan_overlap_FB2"])
    assert simulate(schedule, hidden).makespan == pytest.approx(expected)


def test_every_action_has_its_times():
    simulation = simulate(
        one_f_one_b(2, 2), Costs(forward=1.0, backward_input=1.5, backward_weight=0.5, hop=0.25)
    )
    times = {
        str(action): (simulation.starts[action], simulation.ends[action])
        for action in simulation.starts
    }
    assert times == {
        "0F0": (0, 1),
        "0F1": (1, 2),
        "1F0": (1.25, 2.25),
        "1BW0": (2.25, 4.25),
        "1F1": (4.25, 5.25),
        "0BW0": (4.5, 6.5),
        "1BW1": (5.25, 7.25),
        "0BW1": (7.5, 9.5),
    }
    assert simulation.makespan == 9.5
    assert simulation.spans == (9.5, 6.0)
    assert simulation.span == 9.5
    assert simulation.busy == (6, 6)
    assert simulation.idle == (3.5, 3.5)
    assert simulation.inner_idle == (3.5, 0)
    assert simulation.bubble == pytest.approx(3.5 / 9.5)
    assert simulation.span_bubble == pytest.approx(3.5 / 9.5)


def test_costs_of_stages_and_slices_are_their_own():
    costs = Costs(stage_shares=(1.0, 3.0))
    simulation = simulate(gpipe(2, 1), costs)
    assert simulation.ends[Action(Kind.F, 1, 0)] == 4
    assert simulation.makespan == 12


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        (
            Costs(stage_shares=(1.0, 1.0, 1.0)),
            "stage_shares must hold one number for each of the 2 stages of schedule 'gpipe', but "
            "holds 3; give 2 numbers",
        ),
        (
            Costs(slice_shares=(0.5, 0.5)),
            "slice_shares must hold one number for each of the 1 slices",
        ),
    ],
    ids=["stages", "slices"],
)
def test_shares_for_another_model_are_refused(costs, message):
    with pytest.raises(ValueError, match=message):
        simulate(gpipe(2, 1), costs)


def test_frozen_stages_send_no_gradient_and_keep_no_activation():
    schedule = from_csv("""\
# jaxpipe-schedule 1 devices=3 microbatches=2 placement=loop backward=none,full,input
0F0,0F1
1F0,1F1,1BW0,1BW1
2F0,2B0,2F1,2B1
""")
    simulation = simulate(schedule)
    assert simulation.messages.forward == (2, 2, 0)
    assert simulation.messages.backward == (0, 0, 2)
    assert simulation.peak_live_to_weight_gradient == (0, 2, 1)


def test_a_device_without_work_is_idle():
    schedule = from_csv("""\
# jaxpipe-schedule 1 devices=2 microbatches=1 placement=0 name=half
0F0,0BW0
""")
    simulation = simulate(schedule)
    assert simulation.idle == (0, 3)
    assert simulation.bubble == 0.5
