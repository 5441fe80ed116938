"""Converts the protocol's spaces to Gymnasium's, for RLlib and users' code.

Gymnasium is imported when the first space is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from muxrl.protocol import spaces as plain

if TYPE_CHECKING:
    import gymnasium

Spaces: TypeAlias = "tuple[gymnasium.Space, gymnasium.Space]"
"""An observation space and an action space."""


def spaces_of(one: Any) -> Spaces:
    """Returns the observation and action space of an agent, a seat or a team."""
    return to_gymnasium(one.observation_space), to_gymnasium(one.action_space)


def to_gymnasium(space: plain.Space) -> gymnasium.Space:
    """Returns the Gymnasium space that a plain one describes."""
    from gymnasium import spaces

    if isinstance(space, plain.Box):
        return spaces.Box(*plain.typed_bounds(space), space.shape, np.dtype(space.dtype).type)
    if isinstance(space, plain.Discrete):
        return spaces.Discrete(space.n, start=space.start)
    if isinstance(space, plain.MultiDiscrete):
        return spaces.MultiDiscrete(list(space.nvec))
    if isinstance(space, plain.MultiBinary):
        return spaces.MultiBinary(space.n)
    if isinstance(space, plain.DictSpace):
        return spaces.Dict({key: to_gymnasium(sub) for key, sub in space.spaces.items()})
    return spaces.Tuple([to_gymnasium(sub) for sub in space.spaces])
