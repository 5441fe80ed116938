"""How much teams have to play before an algorithm learns."""

from __future__ import annotations

import math
from collections.abc import Iterator

from muxrl.servers.algorithms.milestones import FIRST_UPDATE, Milestone
from muxrl.servers.algorithms.team_replay.config import TeamReplayConfig


def after_updates(
    config: TeamReplayConfig, num: int, *, what: str = FIRST_UPDATE, settings: tuple[str, ...] = ()
) -> Milestone:
    """Returns what comes with the `num`-th update of a policy.

    Args:
        config: of the algorithm.
        num: from 1 on.
        what: comes then.
        settings: that decide when, beside those that decide on the updates.
    """
    unit = config.replay_unit
    # The entry that makes the replay large enough counts already.
    entries = config.num_before_learning - 1
    entries += math.ceil(num / getattr(config, config.updates_setting))
    settings = (*settings, f"num_{unit}_before_learning", config.updates_setting)
    if unit == "episodes":
        return Milestone(what, settings, episodes=entries)
    return Milestone(what, settings, team_steps=entries)


def find_first_update(config: TeamReplayConfig) -> Iterator[Milestone]:
    """Yields the first update; the milestone of algorithms whose targets move with it."""
    yield after_updates(config, 1)
