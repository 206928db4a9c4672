"""The search over schedules and transforms."""

import pytest

from jaxpipe.plan import best, compare, to_table
from jaxpipe.plan.evaluate import evaluate, peak_activations
from jaxpipe.schedule import (
    Costs,
    Kind,
    insert_recompute,
    make_schedule,
    peak_live,
    schedule_names,
    validate,
)

REAL = Costs(forward=1.0, backward_input=1.3, backward_weight=0.7, hop=0.05)


def test_what_is_found_is_legal_within_the_cap_and_fastest():
    found = best(3, 6, REAL, activation_cap=3.0)
    for each in found.considered:
        validate(each.schedule)
        assert each.peak_activations <= 3.0
        assert each.makespan >= each.lower_bound - 1e-9
        assert each.lockstep_cost >= found.lockstep.lockstep_cost
        assert each.makespan >= found.free_running.makespan
        assert each.weight_copies == 1
    assert found.num_refused > 0


def test_no_published_schedule_that_fits_is_faster():
    found = best(4, 8, REAL)
    for name in schedule_names():
        if name.startswith(("pipedream", "forward", "chimera", "dualpipe", "bitpipe")):
            continue  # these update on their way, do not train, or hold the weights twice
        if name in ("seq1f1b", "terapipe"):
            continue  # these need a causal model
        each = evaluate(make_schedule(name, 4, 8), REAL)
        assert found.free_running.makespan <= each.makespan + 1e-9
        assert found.lockstep.lockstep_cost <= each.lockstep_cost + 1e-9


def test_reaches_the_lower_bound_with_equal_costs():
    """What no schedule of one step can beat: (P - 1) F / v + M (F + B + W)."""
    P, M = 4, 6
    assert best(P, M, max_chunks=1).free_running.makespan == P - 1 + 3 * M
    assert best(P, M, max_chunks=2).free_running.makespan == (P - 1) / 2 + 3 * M


def test_options_widen_the_search():
    plain = best(2, 4)
    labels = {each.label.split(" ")[0] for each in plain.considered}
    assert not any(label.startswith(("seq1f1b", "chimera", "dualpipe(")) for label in labels)
    wide = best(2, 4, num_slices=4, mirrored_weights=True)
    labels = {each.label.split(" ")[0] for each in wide.considered}
    assert {"seq1f1b(num_slices=4)", "terapipe(num_slices=4)", "chimera", "dualpipe"} <= labels
    assert wide.free_running.makespan < plain.free_running.makespan


def test_recompute_lets_more_fit():
    with pytest.raises(ValueError, match="keeps at most activation_cap=1 activations; the most"):
        best(2, 4, max_chunks=1, activation_cap=1.0)
    found = best(2, 4, max_chunks=1, activation_cap=1.0, recomputed_share=0.0)
    assert "recompute" in found.lockstep.label
    assert found.lockstep.peak_activations <= 1.0


def test_the_error_says_what_would_fit():
    with pytest.raises(ValueError, match=r"the most frugal keeps (\S+): raise the cap") as caught:
        best(2, 4, max_chunks=1, activation_cap=0.25)
    needed = float(str(caught.value).split("most frugal keeps ")[1].split(":")[0])
    assert best(2, 4, max_chunks=1, activation_cap=needed).lockstep.peak_activations <= needed


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ({"max_chunks": 0}, "max_chunks must be at least 1, but is 0"),
        ({"num_slices": 0}, "num_slices must be at least 1, but is 0"),
        ({"recomputed_share": 2.0}, "recomputed_share=2.0 is no share of an activation"),
        ({"activation_cap": float("nan")}, "activation_cap=nan is no number of activations"),
    ],
    ids=["chunks", "slices", "share", "cap"],
)
def test_limits_that_make_no_sense_are_refused(limit, message):
    """They used to pass in silence: NaN as no cap at all, and twice an activation as a share."""
    with pytest.raises(ValueError, match=message):
        best(2, 4, **limit)


@pytest.mark.parametrize("name", ["1f1b", "zb_h1", "v_half", "seq1f1b", "dualpipe", "chimera"])
def test_peaks_count_microbatches_of_a_whole_share(name):
    schedule = make_schedule(name, 4, 8)
    pieces = schedule.num_chunks * schedule.num_slices
    assert peak_activations(schedule) == max(peak_live(schedule, until=Kind.W)) / pieces


def test_a_stage_that_recomputes_keeps_its_input_until_then():
    schedule = insert_recompute(make_schedule("1f1b", 4, 8))
    assert peak_activations(schedule, recomputed_share=0.25) == 3 * 0.25 + 1


def test_compare_lists_every_schedule_once_and_says_why_not():
    evaluations, refused = compare(4, 6, num_chunks=2)
    names = [each.label for each in evaluations]
    assert sorted([*names, *refused, "zb1p"]) == sorted(schedule_names())
    assert "at least two microbatches per device" in refused["dualpipe_v"]
    makespans = [each.makespan for each in evaluations]
    assert makespans == sorted(makespans)


def test_a_table_has_one_line_per_schedule_and_aligned_columns():
    evaluations, _ = compare(2, 4)
    lines = to_table(evaluations).splitlines()
    assert len(lines) == len(evaluations) + 1
    assert len({len(line) for line in lines}) == 1
