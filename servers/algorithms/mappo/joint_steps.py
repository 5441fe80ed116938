"""Which rows of different agents' batches are of the same step of the same team.

A server records the members of a group at the same steps, absent ones, too (see `seats`), so that
rows with equal numbers would do. But agents in no group have fewer, and in plain RLlib so do
agents that take turns.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import torch
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.evaluation.postprocessing import Postprocessing

from muxrl.servers.algorithms.on_policy.episodes_to_batch import singles_by_module

JOINT_STEP = "joint_step"
"""A column, int64 ``[B]``: rows with the same number, of whatever module, are of one step of one
team. Numbers begin with 0 in each batch and leave none out."""

_ALL = "all agents"


class JointSteps(ConnectorV2):
    """Adds the column `JOINT_STEP`; comes after `EpisodesToBatch`.

    Args:
        team_of: agents' teams; those that are not named are one.
    """

    def __init__(self, team_of: Mapping[str, Hashable]) -> None:
        super().__init__()
        self.team_of = team_of

    def __call__(
        self,
        *,
        batch: dict[str, Any],
        episodes: Sequence[MultiAgentEpisode | SingleAgentEpisode],
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Adds the column to each module's batch.

        Raises:
            ValueError: a module acts for several agents, or RLlib's episode does not tell when an
                agent acted.
        """
        whole = {id(s): (e, key) for e in episodes if isinstance(e, MultiAgentEpisode)
                 for key, s in e.agent_episodes.items()}  # fmt: skip
        numbers: dict[Hashable, int] = {}
        for module_id, singles in singles_by_module(episodes).items():
            if module_id not in batch:
                continue
            agents = {single.agent_id for single in singles}
            if len(agents) > 1:
                raise ValueError(
                    f"HAPPO updates agents one after another, but policy {module_id!r} acts for "
                    f"{sorted(map(str, agents))}; give each agent a policy of its own"
                )
            (agent_id,) = agents
            team = self.team_of.get(agent_id, _ALL)
            rows = []
            for single in singles:
                episode_id = single.multi_agent_episode_id or single.id_
                episode, key = whole.get(id(single), (None, agent_id))
                # "~2" in a second life, in which steps are counted anew; all of a group have it.
                life = str(key).removeprefix(str(agent_id))
                for t in _steps_of(single, episode):
                    rows.append(numbers.setdefault((team, episode_id, life, t), len(numbers)))
            columns = batch[module_id]
            device = columns[Postprocessing.ADVANTAGES].device
            columns[JOINT_STEP] = torch.tensor(rows, device=device)
        return batch


def _steps_of(single: SingleAgentEpisode, whole: MultiAgentEpisode | None) -> Iterable[int]:
    """Returns the steps at which an agent acted.

    They are the env's where an env runner of RLlib's has noted them, which a server's does not:
    there they are the agent's own, and the same for all members of a group.
    """
    num = len(single)
    agent_id = single.agent_id
    if whole is None or agent_id not in whole.env_t_to_agent_t:
        return range(single.t_started, single.t_started + num)
    known = whole.env_t_to_agent_t[agent_id]
    observed = known.data[known.lookback :]
    steps = [t for t, own in enumerate(observed) if own != whole.SKIP_ENV_TS_TAG]
    # An action that waits for its outcome when RLlib cuts the episode moves to the next piece, but
    # not its place in this list.
    if whole.env_t_started and steps[:num] != list(range(num)):
        raise ValueError(
            f"HAPPO cannot tell when agent {agent_id!r} acted, which does not observe at each step "
            f"of an episode that was cut; set batch_mode='complete_episodes', or have it observe, "
            "with 'alive' 0, where it waits"
        )
    return [whole.env_t_started + t for t in steps[:num]]
