"""A bound on the size of the state that mixers read."""

from __future__ import annotations

from torch import Tensor


def bounded(state: Tensor) -> Tensor:
    """Scales states ``[..., state_dim]`` down to a root mean square of at most 1.

    What hypernetworks make of a state grows with it, and so would values far from the states seen
    (agents that walk off a plane), which then attract agents that maximise them. Smaller states
    stay as they are.
    """
    return state / state.square().mean(-1, keepdim=True).sqrt().clamp(min=1.0)
