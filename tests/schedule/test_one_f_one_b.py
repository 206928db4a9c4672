"""1F1B: others' orders, formulas, published numbers."""

import pytest

from jaxpipe.schedule import Costs, one_f_one_b, simulate
from tests.schedule.goldens import assert_same_cells, golden, golden_names, sizes_of


@pytest.mark.parametrize(
    "name",
    [
        *golden_names("torch_1F1B"),
        *golden_names("sailsg_1F1B_"),
        *golden_names("megatron_1F1B"),
        *golden_names("jaxpp_Std1F1B"),
    ],
)
def test_equals_other_systems_cell_for_cell(name):
    num_devices, _, num_microbatches = sizes_of(name)
    assert_same_cells(one_f_one_b(num_devices, num_microbatches), golden(name))


@pytest.mark.parametrize("num_devices", [1, 2, 4, 7])
@pytest.mark.parametrize("num_microbatches", [1, 3, 8, 20])
@pytest.mark.parametrize("costs", [(1.0, 1.0, 1.0), (2.0, 2.5, 0.75)], ids=["unit", "uneven"])
def test_formulas(num_devices, num_microbatches, costs):
    forward, backward_input, backward_weight = costs
    simulation = simulate(
        one_f_one_b(num_devices, num_microbatches),
        Costs(forward=forward, backward_input=backward_input, backward_weight=backward_weight),
    )
    assert simulation.idle == pytest.approx(((num_devices - 1) * sum(costs),) * num_devices)
    assert simulation.peak_live_to_input_gradient == tuple(
        min(num_microbatches, num_devices - device) for device in range(num_devices)
    )


@pytest.mark.parametrize(
    ("sizes", "idle", "makespan"), [((4, 8), 9, 33), ((8, 32), 21, 117)], ids=str
)
def test_published_cases(sizes, idle, makespan):
    simulation = simulate(one_f_one_b(*sizes))
    assert simulation.makespan == makespan
    assert simulation.idle == (idle,) * sizes[0]
