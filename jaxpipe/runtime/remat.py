"""What a stage's forward keeps, and what its backward computes again."""

import dataclasses

import jax

from jaxpipe.runtime.layer_program import Policy


@dataclasses.dataclass(frozen=True, kw_only=True)
class Remat:
    """A choice between memory and computation.

    Attributes:
        name: As the user gave it.
        policy: What one block keeps between its forward and its backward, as a policy of
            `jax.checkpoint`; None keeps everything.
        whole_stage: Keep the stage's input alone, and run its forward again before the backward.
            Then `policy` says what that second run keeps, for one microbatch at a time.
    """

    name: str
    policy: Policy | None
    whole_stage: bool = False


def choose_remat(remat: str | Policy | Remat) -> Remat:
    """The choice for a name, or for a policy of `jax.checkpoint`.

    - `"none"` keeps everything: for a GELU alone that is five arrays.
    - `"selective"` keeps the results of matmuls with weights and computes the elementwise rest and
      the attention scores again (Korthikanti et al., arXiv 2205.05198, name it so).
    - `"full"` keeps the input of the stage.

    Raises:
        ValueError, TypeError: If it is none of these.
    """
    selective = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    if isinstance(remat, Remat):
        return remat
    if callable(remat):
        return Remat(name=getattr(remat, "__name__", "policy"), policy=remat)
    if not isinstance(remat, str):
        raise TypeError(
            "remat must be 'none', 'selective', 'full' or a policy of jax.checkpoint; found "
            f"{remat!r}"
        )
    match remat:
        case "none":
            return Remat(name=remat, policy=None)
        case "selective":
            return Remat(name=remat, policy=selective)
        case "full":
            return Remat(name=remat, policy=selective, whole_stage=True)
    raise ValueError(
        f"remat must be 'none', 'selective', 'full' or a policy of jax.checkpoint; found {remat!r}"
    )
