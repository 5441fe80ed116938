"""The loop of algorithms with critics of the joint action: `team_replay`'s, on single steps."""

from __future__ import annotations

from muxrl.servers.algorithms.replay.steps import StepReplay
from muxrl.servers.algorithms.team_replay.algorithm import TeamReplayAlgorithm


class JointCriticAlgorithm(TeamReplayAlgorithm):
    """See `JointCriticConfig`."""

    def make_replay(self) -> StepReplay:
        return StepReplay(self.config.buffer_capacity_steps, self.config.seed)
