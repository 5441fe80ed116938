"""What an episode has recorded, in arrays, without RLlib's walk over the tree of every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tree
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer


def recorded_rows(buffer: Any) -> Any:
    """Returns the entries after the lookback, stacked: an array ``[T, ...]``, or a dict of them.

    Args:
        buffer: an attribute of a `SingleAgentEpisode`, of plain lists or of arrays already; or
            what has no lookback.
    """
    if not isinstance(buffer, InfiniteLookbackBuffer):
        return buffer
    if buffer.finalized:
        return tree.map_structure(lambda leaf: leaf[buffer.lookback :], buffer.data)
    return _stacked(buffer.data[buffer.lookback :])


def _stacked(rows: Sequence[Any]) -> Any:
    first = rows[0]
    if isinstance(first, dict):
        return {key: _stacked([row[key] for row in rows]) for key in first}
    return np.array(rows)
