"""What an episode has recorded, in arrays, without RLlib's walk over the tree of every step."""

from __future__ import annotations

from typing import Any

import tree
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer


def recorded_rows(buffer: Any) -> Any:
    """Returns the entries after the lookback, an array ``[T, ...]``, or a dict of them.

    Args:
        buffer: an attribute of a `SingleAgentEpisode`, or what has no lookback.
    """
    if not isinstance(buffer, InfiniteLookbackBuffer):
        return buffer
    buffer.finalize()
    return tree.map_structure(lambda leaf: leaf[buffer.lookback :], buffer.data)
