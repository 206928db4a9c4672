"""Measured costs, and what they are good for. No test looks at how long anything took."""

import pytest

from jaxpipe.runtime import FunctionalPipeline, make_mesh
from jaxpipe.schedule import Costs, Kind, Schedule, freeze, make_schedule, one_f_one_b
from tests.runtime.toy import toy_batch, toy_model, toy_params


def make(schedule: Schedule, remat: str = "selective") -> FunctionalPipeline:
    return FunctionalPipeline(
        toy_model(9), mesh=make_mesh(4), num_microbatches=8, schedule=schedule, remat=remat
    )


@pytest.mark.parametrize(
    ("schedule", "remat", "kinds"),
    [
        (one_f_one_b(4, 8), "selective", "F BW"),
        (one_f_one_b(4, 8), "full", "F BW R"),
        (make_schedule("zb_h1", 4, 8), "selective", "F BW B W"),
        (freeze(one_f_one_b(4, 8), ["none", "input", "input", "full"]), "none", "F BW B W"),
    ],
    ids=["whole", "recomputed", "split", "frozen"],
)
def test_every_kind_that_runs_is_measured_in_every_stage(schedule, remat, kinds):
    pipeline = make(schedule, remat)
    params, batch = pipeline.to_pipeline(toy_params(9, "float32")), toy_batch(16, "float32")
    costs = pipeline.measure(params, batch, repeats=1)
    found = dict(costs.by_stage)
    assert " ".join(found) == kinds
    for stage, backward in enumerate(schedule.backward):
        assert found[Kind.F][stage] > 0
        assert (found[Kind.BW][stage] > 0) == (backward != "none")
    plan = pipeline.plan(params, batch, costs=costs)
    assert plan.step_seconds is not None
    assert plan.step_seconds >= plan.program.ideal_cost
    text = " ".join(str(plan).split())
    assert "predicted for the loop" in text
    assert "measured, on average of the stages F" in text


def test_equal_stages_are_measured_once():
    """Of nine layers on four stages, the last two stages have as many but one holds the head."""
    pipeline = make(one_f_one_b(4, 8))
    params, batch = pipeline.to_pipeline(toy_params(9, "float32")), toy_batch(16, "float32")
    forward = dict(pipeline.measure(params, batch, repeats=1).by_stage)[Kind.F]
    assert forward[1] == forward[2]
    assert len(set(forward)) == 3


def test_a_plan_without_measured_costs_predicts_no_time():
    pipeline = make(one_f_one_b(4, 8))
    params, batch = pipeline.to_pipeline(toy_params(9, "float32")), toy_batch(16, "float32")
    plan = pipeline.plan(params, batch)
    assert plan.step_seconds is None
    assert "predicted for the loop" not in str(plan)


def test_costs_of_stages_take_the_place_of_shares():
    costs = Costs(forward=5.0, by_stage=((Kind.F, (1.0, 2.0)), (Kind.BW, (3.0, 4.0))))
    schedule = one_f_one_b(2, 1)
    found = {str(each): costs.of(each, num_chunks=1) for each in schedule.positions}
    assert found == {"0F0": 1.0, "0BW0": 3.0, "1F0": 2.0, "1BW0": 4.0}


def test_a_program_under_other_costs_keeps_its_ticks():
    program = make(one_f_one_b(4, 8)).program
    other = program.under(Costs(forward=2.0))
    assert other.ticks == program.ticks
    assert other.cost > program.cost
    assert other.form is program.form


def test_a_cost_of_a_stage_below_zero():
    with pytest.raises(ValueError, match="not negative, but by_stage is"):
        Costs(by_stage=((Kind.F, (1.0, -1.0)),))


def test_a_plan_says_what_splitting_the_backward_is_worth():
    params, batch = toy_params(9, "float32"), toy_batch(16, "float32")
    texts = {}
    for name in ("zb_h1", "1f1b"):
        pipeline = make(make_schedule(name, 4, 8))
        texts[name] = " ".join(str(pipeline.plan(pipeline.to_pipeline(params), batch)).split())
    assert "split; with undivided ones the loop would be" in texts["zb_h1"]
    assert "undivided" not in texts["1f1b"]
