"""Zero bubble on a loop: 1F1B whose weight gradients wait for idle time.

Qi, Wan, Huang, Lin: Zero Bubble Pipeline Parallelism (2023), arXiv 2401.10241.

All four are W-fill (`fill_weights`) of a 1F1B order and differ in how many activations a device may
keep from F to W, and in how many forwards it warms up with:

    name            activations    warm-up of device d
    zb_h1 (zb1p)    P              P - d, as 1F1B: no device keeps more than 1F1B's first
    zb1p5           ceil(1.5 P)    2 (P - d) - 1, as eager 1F1B, and at most the activations
    zb2p            2 P            the same
    zb_h2           2 P - 1        the same

`zb_h1` on two devices and three microbatches (dots are idle time):

    device 0  F0 F1 ...B0 W0 F2 B1 W1 B2 W2
    device 1  ...F0 B0 F1 B1 W0 F2 B2 W1 W2

Sizes: any number of devices `P` and of microbatches `M`.
Idle per device, from `M >= P`: `zb_h1` `(P - 1) (F + B - W)`. From `M >= 2 P - 1`, `zb_h2` spans
`M (F + B + W) + (P - 1) (F + B - 2 W)` on its busiest device: none of it idle with F = B = W, so
that steps run back to back leave no gap. Within one step no order can end before
`(P - 1) F + M (F + B + W)`, which all four reach when F = B = W.
Memory: the activations above. In what B and W need, `MB` and `MW`: device `d` of `zb_h1` keeps
`(P - d) MB + d MW`, of `zb_h2` `(2 (P - d) - 1) MB + 2 d MW`.
"""

import dataclasses

from jaxpipe.schedule.action import Action, Kind
from jaxpipe.schedule.alternate import alternate
from jaxpipe.schedule.fill_weights import fill_weights
from jaxpipe.schedule.one_f_one_b import one_f_one_b
from jaxpipe.schedule.schedule import Schedule
from jaxpipe.schedule.sizes import check_sizes


def zb_h1(num_devices: int, num_microbatches: int) -> Schedule:
    """ZB-H1, also called ZB1P: the memory of 1F1B and a third of its bubble.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If a size is below 1.

    Example:
        >>> [str(action) for action in zb_h1(2, 3).actions(1)]
        ['1F0', '1B0', '1F1', '1B1', '1W0', '1F2', '1B2', '1W1', '1W2']
    """
    check_sizes(num_devices=num_devices, num_microbatches=num_microbatches)
    filled = fill_weights(one_f_one_b(num_devices, num_microbatches))
    return dataclasses.replace(filled, name="zb_h1")


def zb_h2(num_devices: int, num_microbatches: int) -> Schedule:
    """ZB-H2: up to `2 P - 1` activations, and no idle time from one step to the next.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If a size is below 1.
    """
    check_sizes(num_devices=num_devices, num_microbatches=num_microbatches)
    return _filled("zb_h2", num_devices, num_microbatches, activation_cap=2 * num_devices - 1)


def zb2p(num_devices: int, num_microbatches: int) -> Schedule:
    """ZB2P: as ZB-H2, with one activation more.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If a size is below 1.
    """
    check_sizes(num_devices=num_devices, num_microbatches=num_microbatches)
    return _filled("zb2p", num_devices, num_microbatches, activation_cap=2 * num_devices)


def zb1p5(num_devices: int, num_microbatches: int) -> Schedule:
    """ZB1.5P: between ZB1P and ZB2P in memory and in idle time.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If a size is below 1.
    """
    check_sizes(num_devices=num_devices, num_microbatches=num_microbatches)
    activation_cap = -(-3 * num_devices // 2)
    return _filled("zb1p5", num_devices, num_microbatches, activation_cap=activation_cap)


def _filled(name: str, num_devices: int, num_microbatches: int, *, activation_cap: int) -> Schedule:
    base = one_f_one_b(num_devices, num_microbatches)
    rows = []
    for device in range(num_devices):
        forwards, backwards = (
            [Action(kind, device, microbatch) for microbatch in range(num_microbatches)]
            for kind in (Kind.F, Kind.B)
        )
        warmup = min(2 * (num_devices - 1 - device), activation_cap - 1)
        row = alternate(forwards, backwards, warmup=warmup)
        rows.append(tuple((action,) for action in row))
    eager = dataclasses.replace(base, name=name, rows=tuple(rows))
    return fill_weights(eager, activation_cap=activation_cap)
