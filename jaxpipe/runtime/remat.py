"""What a stage's forward keeps, and what its backward computes again.

Two choices, one for the blocks and one for whole stages:

- the *policy* says what one block keeps between its forward and its backward;
- *recomputation* keeps nothing of a stage but its input, and runs its layers once more right before
  the backward. It is an action R of the schedule (`jaxpipe.schedule.insert_recompute`), so it may
  hold for some stages and some microbatches only. A schedule may also come with an R of its own.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from jaxpipe.runtime.layer_program import Policy
from jaxpipe.schedule.action import Kind
from jaxpipe.schedule.recompute import insert_recompute
from jaxpipe.schedule.schedule import Backward, Schedule


@dataclasses.dataclass(frozen=True, kw_only=True)
class Remat:
    """A choice between memory and computation.

    Attributes:
        name: As the user gave it.
        policy: What one block keeps between its forward and its backward, as a policy of
            `jax.checkpoint`; None keeps everything. For recomputed microbatches it says what the
            second forward keeps, for one microbatch at a time.
        stages: The stages that are recomputed; None for all, and none by default.
        except_last: Leave the last microbatch out: in GPipe its backward begins when its forward
            ends, and nothing is gained (Kim et al., torchgpipe, arXiv 2004.09910, section 3.2).
    """

    name: str
    policy: Policy | None
    stages: tuple[int, ...] | None = ()
    except_last: bool = False

    def apply(self, schedule: Schedule) -> Schedule:
        """The schedule with the R that this choice asks for.

        Stages whose backwards the schedule recomputes already stay as they are.

        Raises:
            ValueError: If the schedule has not all of the stages.
        """
        wanted = range(schedule.num_stages) if self.stages is None else self.stages
        if beyond := [stage for stage in wanted if not 0 <= stage < schedule.num_stages]:
            raise ValueError(
                f"remat names the stages {beyond}, but schedule {schedule.name!r} has the stages 0 "
                f"to {schedule.num_stages - 1}; name some of these"
            )
        recomputed = {
            action.stage
            for device in range(schedule.num_devices)
            for action in schedule.actions(device)
            if action.kind is Kind.R
        }
        stages = [
            stage
            for stage in wanted
            if stage not in recomputed and schedule.backward[stage] is not Backward.NONE
        ]
        count = schedule.num_microbatches - self.except_last
        return insert_recompute(schedule, stages, range(count)) if stages else schedule


def keeps_matmuls(primitive: Any, *operands: Any, **parameters: Any) -> bool:
    """The policy of `"selective"`: keeps the results of matmuls with weights and convolutions."""
    if primitive.name == "conv_general_dilated":
        return True
    return jax.checkpoint_policies.dots_with_no_batch_dims_saveable(
        primitive, *operands, **parameters
    )


def recompute(
    stages: Sequence[int] | None = None, *, except_last: bool = False, policy: Policy | None = None
) -> Remat:
    """Recomputation of some stages, or all but the last of the microbatches.

    Args:
        stages: Which stages; by default all.
        except_last: Leave the last microbatch out.
        policy: What a block's second forward keeps for the backward, as a policy of
            `jax.checkpoint`; by default that of `"selective"`.

    Example:
        >>> recompute([0, 1], except_last=True).name
        'full in stages 0, 1, except the last microbatch'
    """
    where = "" if stages is None else f" in stages {', '.join(map(str, stages))}"
    return Remat(
        name=f"full{where}{', except the last microbatch' if except_last else ''}",
        policy=policy or keeps_matmuls,
        stages=None if stages is None else tuple(stages),
        except_last=except_last,
    )


def choose_remat(remat: str | Policy | Remat) -> Remat:
    """The choice for a name, or for a policy of `jax.checkpoint`.

    - `"none"` keeps everything: for a GELU alone that is five arrays.
    - `"selective"` keeps the results of matmuls with weights and of convolutions, and computes the
      elementwise rest and the attention scores again (Korthikanti et al., arXiv 2205.05198, name it
      so).
    - `"full"` keeps the input of every stage, and recomputes its layers.
    - `"except_last"` does so for all microbatches but the last one.

    Raises:
        ValueError, TypeError: If it is none of these.
    """
    if isinstance(remat, Remat):
        return remat
    if callable(remat):
        return Remat(name=getattr(remat, "__name__", "policy"), policy=remat)
    choices = {
        "none": Remat(name="none", policy=None),
        "selective": Remat(name="selective", policy=keeps_matmuls),
        "full": Remat(name="full", policy=keeps_matmuls, stages=None),
        "except_last": Remat(
            name="except_last", policy=keeps_matmuls, stages=None, except_last=True
        ),
    }
    if isinstance(remat, str) and remat in choices:
        return choices[remat]
    error = ValueError if isinstance(remat, str) else TypeError
    raise error(
        "remat must be 'none', 'selective', 'full', 'except_last', jaxpipe.recompute(stages) or a "
        f"policy of jax.checkpoint; found {remat!r}"
    )
