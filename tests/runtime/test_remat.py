"""Choices of what the backward computes again."""

import re

import jax
import pytest

from jaxpipe.runtime.remat import choose_remat, keeps_matmuls, recompute
from jaxpipe.schedule import Kind, Schedule, freeze, insert_recompute, make_schedule
from tests.runtime.as_users_call import unchecked

POLICIES = jax.checkpoint_policies


@pytest.mark.parametrize(
    ("name", "policy", "recomputed"),
    [
        ("none", None, 0),
        ("selective", keeps_matmuls, 0),
        ("full", keeps_matmuls, 4 * 8),
        ("except_last", keeps_matmuls, 4 * 7),
    ],
)
def test_names(name, policy, recomputed):
    remat = choose_remat(name)
    assert (remat.name, remat.policy) == (name, policy)
    assert choose_remat(remat) is remat
    assert len(recomputed_by(remat.apply(make_schedule("1f1b", 4, 8)))) == recomputed


def recomputed_by(schedule: Schedule) -> set[tuple[int, int | None]]:
    """Stage and microbatch of every R."""
    return {
        (action.stage, action.microbatch) for action in schedule.positions if action.kind is Kind.R
    }


def test_some_stages_and_all_but_the_last_microbatch():
    remat = recompute([0, 2], except_last=True)
    found = recomputed_by(remat.apply(make_schedule("gpipe", 3, 3)))
    assert found == {(0, 0), (0, 1), (2, 0), (2, 1)}


def test_stages_that_recompute_already_or_have_no_backward_stay_as_they_are():
    schedule = freeze(make_schedule("1f1b", 3, 2), ["none", "full", "full"])
    schedule = insert_recompute(schedule, [1], [0])
    found = recomputed_by(choose_remat("full").apply(schedule))
    assert found == {(1, 0), (2, 0), (2, 1)}


def test_a_stage_that_is_not_there():
    message = (
        "remat names the stages [4], but schedule 'gpipe' has the stages 0 to 3; name some of these"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        recompute([0, 4]).apply(make_schedule("gpipe", 4, 8))


def test_a_policy_is_named_by_its_function():
    remat = choose_remat(POLICIES.nothing_saveable)
    assert remat.policy is POLICIES.nothing_saveable
    assert remat.name == POLICIES.nothing_saveable.__name__


@pytest.mark.parametrize(
    ("remat", "error", "found"),
    [("most", ValueError, "found 'most'"), (True, TypeError, "found True")],
)
def test_what_is_no_choice(remat, error, found):
    message = (
        "remat must be 'none', 'selective', 'full', 'except_last', jaxpipe.recompute(stages) or a "
        f"policy of jax.checkpoint; {found}"
    )
    with pytest.raises(error, match=re.escape(message)):
        unchecked(choose_remat)(remat)
