"""Choices of what the backward computes again."""

import re

import jax
import pytest

from jaxpipe.runtime.remat import choose_remat
from tests.runtime.as_users_call import unchecked

POLICIES = jax.checkpoint_policies


@pytest.mark.parametrize(
    ("name", "policy", "whole_stage"),
    [
        ("none", None, False),
        ("selective", POLICIES.dots_with_no_batch_dims_saveable, False),
        ("full", POLICIES.dots_with_no_batch_dims_saveable, True),
    ],
)
def test_names(name, policy, whole_stage):
    remat = choose_remat(name)
    assert (remat.name, remat.policy, remat.whole_stage) == (name, policy, whole_stage)
    assert choose_remat(remat) is remat


def test_a_policy_is_named_by_its_function():
    remat = choose_remat(POLICIES.nothing_saveable)
    assert remat.policy is POLICIES.nothing_saveable
    assert remat.name == POLICIES.nothing_saveable.__name__


@pytest.mark.parametrize(
    ("remat", "error", "found"),
    [("most", ValueError, "found 'most'"), (True, TypeError, "found True")],
)
def test_what_is_no_choice(remat, error, found):
    message = f"remat must be 'none', 'selective', 'full' or a policy of jax.checkpoint; {found}"
    with pytest.raises(error, match=re.escape(message)):
        unchecked(choose_remat)(remat)
