"""Published formulas and numbers about schedules, in the domain and the units they are stated for.

P devices, v chunks, M microbatches, k slices; F, B, W are the costs of one microbatch on a device's
whole share; c is one hop. "Idle" is that within the makespan unless the span is named.
"""

import pytest

from jaxpipe.schedule import (
    Action,
    Costs,
    Kind,
    Schedule,
    fill_weights,
    make_schedule,
    peak_live,
    simulate,
    split_backward,
)

F, B, W = 1.0, 1.25, 0.5
UNEVEN = Costs(forward=F, backward_input=B, backward_weight=W)
SIZES = [(2, 4), (4, 8), (4, 20), (8, 24)]


def idle(schedule: Schedule, costs: Costs) -> float:
    """Of the idlest device."""
    return max(simulate(schedule, costs).idle)


@pytest.mark.parametrize(("P", "M"), [*SIZES, (4, 2), (5, 3)])
def test_eager_1f1b(P, M):
    schedule = make_schedule("eager_1f1b", P, M)
    assert idle(schedule, UNEVEN) == pytest.approx((P - 1) * (F + B + W))
    assert peak_live(schedule, until=Kind.B) == tuple(min(M, 2 * (P - d) - 1) for d in range(P))


@pytest.mark.parametrize(("P", "M"), SIZES)
@pytest.mark.parametrize("v", [1, 2, 3])
def test_interleaved_1f1b(P, M, v):
    for N in (P, P + 1, M):
        schedule = make_schedule("interleaved_1f1b", P, M, num_chunks=v, group_size=N)
        first = N if M % N == 0 or M % N >= P else N + M % N
        assert peak_live(schedule, until=Kind.B) == tuple(
            min(v * M, (v - 1) * first + 2 * (P - 1 - d) + 1) for d in range(P)
        )
        if N == P:
            assert idle(schedule, UNEVEN) == pytest.approx((P - 1) * (F + B + W) / v)


@pytest.mark.parametrize(("P", "M"), [*SIZES, (4, 5), (8, 8)])
@pytest.mark.parametrize("v", [1, 2, 4])
def test_looped_bfs(P, M, v):
    schedule = make_schedule("looped_bfs", P, M, num_chunks=v)
    assert idle(schedule, UNEVEN) == pytest.approx((P - 1) * (F + B + W) / v)
    assert peak_live(schedule, until=Kind.B) == (v * M,) * P


def test_looped_bfs_with_fewer_microbatches_than_devices_idles_more():
    schedule = make_schedule("looped_bfs", 8, 6, num_chunks=2)
    assert idle(schedule, Costs()) == 13.5


@pytest.mark.parametrize(("P", "M"), SIZES)
def test_zb_h1(P, M):
    schedule = make_schedule("zb_h1", P, M)
    assert idle(schedule, UNEVEN) == pytest.approx((P - 1) * (F + B - W))
    assert peak_live(schedule, until=Kind.W) == (P,) * P
    for device in range(P):
        assert peak_weighted(schedule, device) == (P - device) * 1.0 + device * 0.5


@pytest.mark.parametrize(("P", "M"), [(2, 3), (4, 8), (4, 20), (8, 24)])
@pytest.mark.parametrize("c", [0.0, 0.125])
def test_zb_h2(P, M, c):
    schedule = make_schedule("zb_h2", P, M)
    costs = Costs(forward=1.0, backward_input=1.1, backward_weight=0.9, hop=c)
    simulation = simulate(schedule, costs)
    expected = (P - 1) * (1.0 + 1.1 + 2 * c - 2 * 0.9)
    assert simulation.span - M * costs.per_microbatch == pytest.approx(expected)
    assert max(peak_live(schedule, until=Kind.W)) == 2 * P - 1
    for device in range(P):
        assert peak_weighted(schedule, device) == 2 * (P - device) - 1 + 2 * device * 0.5


def test_zero_bubble_memory_in_what_b_and_w_need():
    for name, expected in (
        ("zb_h1", [8, 7.5, 7, 6.5, 6, 5.5, 5, 4.5]),
        ("zb_h2", [15, 14, 13, 12, 11, 10, 9, 8]),
    ):
        schedule = make_schedule(name, 8, 24)
        assert [peak_weighted(schedule, device) for device in range(8)] == expected


def peak_weighted(schedule: Schedule, device: int, for_b: float = 1.0, for_w: float = 0.5) -> float:
    """Peak of what a device keeps when B needs `for_b` of an activation and W alone `for_w`."""
    kept = peak = 0.0
    for action in schedule.actions(device):
        if action.kind is Kind.F:
            kept += for_b
        elif action.kind is Kind.B:
            kept += for_w - for_b
        elif action.kind is Kind.W:
            kept -= for_w
        peak = max(peak, kept)
    return peak


# The Zero Bubble paper's table 5: sizes, costs of F, B, W and a hop, and the printed bubble rates.
ZERO_BUBBLE = [
    (8, 24, (18.522, 18.086, 9.337, 0.601), {"1f1b": 0.2431, "zb_h1": 0.1585, "zb_h2": 0.1083}),
    (16, 48, (11.347, 11.248, 8.132, 0.377), {"1f1b": 0.2552, "zb_h1": 0.1397, "zb_h2": 0.0672}),
]


@pytest.mark.parametrize(("P", "M", "costs", "rates"), ZERO_BUBBLE, ids=["P8", "P16"])
def test_zero_bubble_table(P, M, costs, rates):
    """(cost - M (F + B + W)) / cost; the cost of ZB-H2 is the span, of the others the makespan."""
    forward, backward_input, backward_weight, hop = costs
    measured = Costs(
        forward=forward,
        backward_input=backward_input,
        backward_weight=backward_weight,
        hop=hop,
    )
    for name, rate in rates.items():
        simulation = simulate(make_schedule(name, P, M), measured)
        cost = simulation.span if name == "zb_h2" else simulation.makespan
        assert round(1 - M * measured.per_microbatch / cost, 4) == rate
        if (name, P) == ("zb_h2", 16):
            by_makespan = 1 - M * measured.per_microbatch / simulation.makespan
            assert round(by_makespan, 4) == 0.1065


@pytest.mark.parametrize(("P", "M"), [(1, 1), (2, 3), (4, 8), (8, 16), (6, 30)])
def test_zbv(P, M):
    schedule = make_schedule("zbv", P, M)
    simulation = simulate(schedule)
    assert simulation.inner_idle == pytest.approx((0,) * P)
    assert simulation.makespan == pytest.approx(3 * M + (P - 1) / 2)
    # P microbatches of two chunks.
    assert max(simulation.peak_live_to_weight_gradient) == 2 * P


def test_v_half_and_v_min_against_1f1b():
    """Idle 5/18 and 11/18 of 1F1B's at P = 4, M = 8, with 3 and 2 microbatches' activations."""
    reference = idle(make_schedule("1f1b", 4, 8), Costs())
    for name, share, peak in (("v_half", 5 / 18, 6), ("v_min", 11 / 18, 4)):
        schedule = make_schedule(name, 4, 8)
        assert idle(schedule, Costs()) == pytest.approx(share * reference)
        assert max(peak_live(schedule, until=Kind.W)) == peak


@pytest.mark.parametrize(
    ("name", "makespan", "peak"),
    [("zbv", 103, 16), ("v_half", 113, 10), ("v_min", 123, 8)],
)
def test_v_schedules_of_eight_devices_are_no_worse_than_published(name, makespan, peak):
    """P = 8, M = 16, in units of one chunk's F = B = W."""
    simulation = simulate(
        make_schedule(name, 8, 16), Costs(forward=2.0, backward_input=2.0, backward_weight=2.0)
    )
    assert simulation.makespan <= makespan
    assert max(simulation.peak_live_to_weight_gradient) <= peak


@pytest.mark.parametrize(("P", "M"), SIZES)
@pytest.mark.parametrize("k", [1, 2, 4])
def test_seq1f1b(P, M, k):
    schedule = make_schedule("seq1f1b", P, M, num_slices=k)
    assert idle(schedule, UNEVEN) == pytest.approx((P - 1) * (F + B + W) / k)
    assert peak_live(schedule, until=Kind.B) == tuple(P + k - 1 - d for d in range(P))


@pytest.mark.parametrize(
    ("lengths", "ratio"), [((16, 16, 16, 16), 0.3510), ((24, 16, 13, 11), 0.1157)], ids=str
)
def test_seq1f1b_with_attention(lengths, ratio):
    """A slice of l tokens behind ctx others costs l (1 + 0.05 (ctx + l / 2)) in F, twice in BW."""
    shares = tuple(
        length * (1 + 0.05 * (sum(lengths[:index]) + length / 2))
        for index, length in enumerate(lengths)
    )
    schedule = make_schedule("seq1f1b", 4, 8, num_slices=4)
    simulation = simulate(schedule, Costs(slice_shares=shares))
    assert round(simulation.bubble, 4) == ratio


@pytest.mark.parametrize(
    ("slices", "hop", "forward", "both"),
    [
        ((10, 26, 42), 0.0, 162, 486),
        ((10, 26, 42), 0.5, 163, None),
        ((28, 27, 23), 0.0, 134, 402),
    ],
    ids=str,
)
def test_terapipe(slices, hop, forward, both):
    P = 3
    schedule = make_schedule("terapipe", P, 1, num_slices=len(slices))
    shares = tuple(float(slice_) for slice_ in slices)
    simulation = simulate(schedule, Costs(slice_shares=shares, hop=hop))
    last = Action(Kind.F, P - 1, 0, len(slices) - 1)
    assert simulation.ends[last] == sum(slices) + (P - 1) * max(slices) + (P - 1) * hop == forward
    if both is not None:
        assert simulation.makespan == both
    assert peak_live(schedule, until=Kind.B) == (len(slices),) * P


@pytest.mark.parametrize("P", [2, 4, 6, 8, 16])
def test_chimera(P):
    M = P
    schedule = make_schedule("chimera", P, M)
    equal = simulate(schedule, Costs(forward=2.0, backward_input=1.0, backward_weight=1.0))
    double = simulate(schedule, Costs())
    assert equal.bubble == pytest.approx((P - 2) / (2 * M + P - 2))
    assert double.bubble == pytest.approx((P - 2) / (1.5 * M + P - 2))
    peaks = peak_live(schedule, until=Kind.B)
    assert min(peaks) == P // 2 + 1
    assert max(peaks) == P


@pytest.mark.parametrize(("P", "M", "peak", "idle_time"), [(4, 8, 5, 2), (8, 20, 9, 6)])
def test_dualpipe(P, M, peak, idle_time):
    """FB = 3 and BW = 2 and W = 1: a pair costs no less than its parts."""
    simulation = simulate(make_schedule("dualpipe", P, M))
    assert simulation.idle == (idle_time,) * P
    assert idle_time == (P / 2 - 1) * (3 + 2 - 3 * 1)
    assert simulation.peak_live_to_weight_gradient == (peak,) * P


@pytest.mark.parametrize("P", [2, 4, 6, 8])
@pytest.mark.parametrize("overlap", [0.0, 0.5, 1.0])
def test_dualpipe_formulas(P, overlap):
    """The formulas count for the idlest device."""
    M = 4 * P
    pair = 3 - overlap
    dualpipe = simulate(make_schedule("dualpipe", P, M), Costs(overlap=overlap))
    assert max(dualpipe.idle) == pytest.approx((P / 2 - 1) * (pair + 2 - 3))
    assert max(dualpipe.peak_live_to_weight_gradient) == P + 1

    chunk = Costs(forward=2.0, backward_input=2.0, backward_weight=2.0, overlap=overlap)
    dualpipe_v = simulate(make_schedule("dualpipe_v", P, M), chunk)
    assert max(dualpipe_v.idle) == pytest.approx((P - 1) * (pair + 2 - 3))
    assert max(dualpipe_v.peak_live_to_weight_gradient) == 2 * P + 1


@pytest.mark.parametrize("name", ["1f1b", "eager_1f1b", "gpipe", "zb_h1", "zb_h2", "zb2p", "zb1p5"])
@pytest.mark.parametrize("costs", [Costs(), UNEVEN], ids=["unit", "uneven"])
def test_no_step_is_shorter_than_ramp_and_work(name, costs):
    P, M = 4, 8
    least = (P - 1) * costs.forward + M * costs.per_microbatch
    assert simulate(make_schedule(name, P, M), costs).makespan >= least
    assert simulate(fill_weights(make_schedule(name, P, M)), costs).lower_bound == (
        pytest.approx(least)
    )


@pytest.mark.parametrize(
    ("name", "options", "P", "M", "idle_time", "peak"),
    [
        ("interleaved_1f1b", {"num_chunks": 2}, 4, 8, 4.5, 11),
        ("interleaved_1f1b", {"num_chunks": 4}, 8, 16, 5.25, 39),
        ("looped_bfs", {"num_chunks": 4}, 8, 16, 5.25, 64),
        ("seq1f1b", {"num_slices": 2}, 4, 8, 4.5, 5),
        ("seq1f1b", {"num_slices": 4}, 4, 8, 2.25, 7),
    ],
    ids=str,
)
def test_published_cases(name, options, P, M, idle_time, peak):
    schedule = make_schedule(name, P, M, **options)
    assert idle(schedule, Costs()) == idle_time
    assert max(peak_live(schedule, until=Kind.B)) == peak


@pytest.mark.parametrize(("P", "v"), [(4, 1), (4, 2), (4, 3), (8, 2)])
def test_interleaved_zero_bubble(P, v):
    schedule = make_schedule("interleaved_zb", P, 2 * P, num_chunks=v)
    simulation = simulate(schedule)
    assert simulation.makespan == pytest.approx(6 * P + (P - 1) / v)
    assert simulation.peak_live_to_weight_gradient == ((v - 1) * P + P,) * P


@pytest.mark.parametrize("P", [2, 4, 8])
@pytest.mark.parametrize("w", [1, 2, 3])
def test_hanayo(P, w):
    schedule = make_schedule("hanayo", P, P, num_waves=w)
    assert simulate(schedule).bubble <= (2 * P - 2) / (3 * P * w + P - 1)
    assert max(peak_live(schedule, until=Kind.B)) <= 2 * w * P


@pytest.mark.parametrize(("P", "M", "v"), [(4, 8, 1), (4, 8, 2), (8, 8, 3)])
def test_forward_only(P, M, v):
    schedule = make_schedule("forward_only", P, M, num_chunks=v)
    assert idle(schedule, UNEVEN) == pytest.approx((P - 1) * F / v)
    assert peak_live(schedule, until=Kind.W) == (0,) * P


# W-fill of P = 4, M = 8 (and two larger): time before and after, in units of one action.
@pytest.mark.parametrize(
    ("name", "options", "sizes", "before", "after"),
    [
        ("1f1b", {}, (4, 8), 33, 27),
        ("interleaved_1f1b", {"num_chunks": 2}, (4, 8), 57, 51),
        ("dualpipe_v", {}, (4, 8), 54, 51),
        ("seq1f1b", {"num_slices": 2}, (4, 8), 57, 51),
        ("chimera", {}, (4, 8), 30, 25),
        ("bitpipe", {}, (4, 8), 54, 49),
        ("looped_bfs", {"num_chunks": 2}, (4, 8), 57, 54),
        ("gpipe", {}, (4, 8), 33, 30),
        ("1f1b", {}, (8, 16), 69, 55),
        ("interleaved_1f1b", {"num_chunks": 2}, (8, 16), 117, 103),
        ("1f1b", {}, (8, 4), 33, 23),
    ],
    ids=lambda value: str(value).replace(" ", ""),
)
def test_w_fill_of_a_fused_schedule(name, options, sizes, before, after):
    schedule = make_schedule(name, *sizes, **options)
    unit = float(schedule.num_chunks * schedule.num_slices)
    costs = Costs(forward=unit, backward_input=unit, backward_weight=unit)
    filled = fill_weights(schedule)
    assert simulate(schedule, costs).makespan == pytest.approx(before)
    assert simulate(filled, costs).makespan == pytest.approx(after)
    assert max(peak_live(filled, until=Kind.W)) == max(peak_live(schedule, until=Kind.W))


def test_w_fill_of_a_split_schedule():
    unit = Costs(forward=2.0, backward_input=2.0, backward_weight=2.0)
    for group_size, before, after in ((2, 56, 53), (3, 55, 52), (4, 54, 51)):
        schedule = split_backward(make_schedule("group_interleaved", 4, 8, group_size=group_size))
        assert simulate(schedule, unit).makespan == before
        assert simulate(fill_weights(schedule), unit).makespan == after
        assert peak_live(schedule, until=Kind.W)[0] == group_size + 4
