"""GPipe: others' orders, formulas, published numbers."""

import pytest

from jaxpipe.schedule import Costs, gpipe, simulate
from tests.schedule.goldens import assert_same_cells, golden, golden_names, sizes_of


@pytest.mark.parametrize("name", golden_names("torch_GPipe") + golden_names("jaxpp_GPipe"))
def test_equals_other_systems_cell_for_cell(name):
    num_devices, _, num_microbatches = sizes_of(name)
    assert_same_cells(gpipe(num_devices, num_microbatches), golden(name))


@pytest.mark.parametrize("num_devices", [1, 2, 4, 7])
@pytest.mark.parametrize("num_microbatches", [1, 3, 8, 20])
@pytest.mark.parametrize("costs", [(1.0, 1.0, 1.0), (2.0, 2.5, 0.75)], ids=["unit", "uneven"])
def test_formulas(num_devices, num_microbatches, costs):
    forward, backward_input, backward_weight = costs
    simulation = simulate(
        gpipe(num_devices, num_microbatches),
        Costs(forward=forward, backward_input=backward_input, backward_weight=backward_weight),
    )
    idle = (num_devices - 1) * sum(costs)
    assert simulation.idle == pytest.approx((idle,) * num_devices)
    assert simulation.makespan == pytest.approx(num_microbatches * sum(costs) + idle)
    assert simulation.makespan == pytest.approx(simulation.lower_bound)
    assert simulation.peak_live_to_input_gradient == (num_microbatches,) * num_devices


def test_published_case():
    simulation = simulate(gpipe(4, 8))
    assert (simulation.makespan, simulation.idle) == (33, (9, 9, 9, 9))
    assert simulation.peak_live_to_weight_gradient == (8, 8, 8, 8)
