"""How much teams have to play before an algorithm learns, and what its replay takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from muxrl.servers.agents.seats import Seat
from muxrl.servers.algorithms.milestones import FIRST_UPDATE, Milestone
from muxrl.servers.algorithms.replay_size import ReplaySize
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


def replay_size(
    config: TeamReplayConfig, seats: Mapping[str, Seat], bytes_of_step: Callable[[Seat], int]
) -> ReplaySize:
    """Returns what the replays store of the teams, one for each policy.

    Args:
        config: of the algorithm.
        seats: of the server, teams all.
        bytes_of_step: what a team's step takes.
    """
    capacity: int = config.replay_setting("buffer_capacity")
    # Of each policy one team: those that share it are alike.
    teams = {seat.policy_id: seat for seat in seats.values()}.values()
    policies = f" of each of {len(teams)} policies" if len(teams) > 1 else ""
    holds_episodes = config.replay_unit == "episodes"
    entries = "episodes" if holds_episodes else "team steps"
    longest: int = getattr(config, "max_sequence_steps", 0)
    of_steps = list(map(bytes_of_step, teams))
    return ReplaySize(
        f"{capacity:,} {entries}{policies}",
        capacity * sum(of_steps),
        f"buffer_capacity_{config.replay_unit}",
        per_env_step=holds_episodes,
        longest=longest,
        update_bytes=config.replay_setting("batch_size") * longest * max(of_steps),
    )
