"""HAPPO: MAPPO with an actor and a critic for each agent, updated one agent after another.

Kuba et al. 2022, "Trust Region Policy Optimisation in Multi-Agent Reinforcement Learning" (arXiv
2109.11251). If all agents of a team change at once, each change an improvement if the others stay
as they are, the team may become worse. Here the advantages of each agent account for the agents
that were updated before it in the same update.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from muxrl.servers.agents.keys import ACTION_MASK
from muxrl.servers.algorithms.actor_critic import ACTOR
from muxrl.servers.algorithms.columns import ACTIONS, ADVANTAGES
from muxrl.servers.algorithms.distributions import masked
from muxrl.servers.algorithms.mappo import MAPPO, ratio_of
from muxrl.servers.algorithms.networks import joined
from muxrl.servers.algorithms.settings.actor_critic import HAPPOSettings
from muxrl.servers.episodes.trajectories import Trajectory


class HAPPO(MAPPO):
    """MAPPO with a policy for each agent, updated one by one (Kuba et al. 2022)

    The losses are MAPPO's, of one policy after another, in an order drawn anew for each update. All
    epochs of a policy come before the next one's. Its advantages are multiplied by ``M``, the
    product over the policies before it::

        M = prod_j  pi_j_new(a_j | o_j) / pi_j_old(a_j | o_j)

    for the actions of their agents at the same step of the same team. An agent that is absent
    there, or whose action was chosen elsewhere, has the factor 1. No gradient flows through ``M``.
    """

    Settings = HAPPOSettings
    settings: HAPPOSettings

    @classmethod
    def learn_together(
        cls, trainers: Mapping[str, HAPPO], played: Mapping[str, Sequence[Trajectory]]
    ) -> dict[str, dict[str, float]]:
        """Learns all policies of a server; returns metrics by policy id.

        Args:
            trainers: by policy id. The trainer of the first id draws the order of the updates.
            played: pieces of episodes, by policy id.

        Raises:
            ValueError: a policy acts for several agents.
        """
        steps = joint_steps(trainers, played)
        first = trainers[min(trainers)]
        num_steps = 1 + max((int(of.max()) for of in steps.values()), default=-1)
        factors = torch.ones(num_steps, device=first.device)
        metrics: dict[str, dict[str, float]] = {}
        policy_ids = sorted(played)
        for place, index in enumerate(first.rng.permutation(len(policy_ids))):
            policy_id = policy_ids[index]
            one, fragments = trainers[policy_id], played[policy_id]
            rows = torch.from_numpy(steps[policy_id]).to(first.device)
            rollout = one.begin_batch(fragments)
            columns = one.batch_of(rollout)
            weighted = {**columns, ADVANTAGES: columns[ADVANTAGES] * factors[rows]}
            part = place, len(policy_ids)
            found = one.learn_columns(weighted, rollout, part)
            metrics[policy_id] = one.reported(found, rollout)
            factors[rows] *= one.ratios(columns)
        return metrics

    @torch.no_grad()
    def ratios(self, columns: Mapping[str, Any]) -> Tensor:
        """Returns the probability ratios, new to old, of a batch's actions, ``[B]``."""
        net = self.net
        inputs = net.inputs(net.actor(joined(columns, net.keys[ACTOR])))
        inputs = masked(inputs, columns.get(ACTION_MASK))
        return ratio_of(self.distribution.terms(inputs, columns[ACTIONS]).log_prob, columns)


def joint_steps(
    trainers: Mapping[str, HAPPO], played: Mapping[str, Sequence[Trajectory]]
) -> dict[str, np.ndarray]:
    """Finds the rows of different policies that are of the same step of the same team.

    The members of a group are recorded at the same steps of each life, even if absent (see
    `CENTRAL`). An agent without a group is a team by itself.

    Args:
        trainers: by policy id.
        played: pieces of episodes, by policy id.

    Returns:
        By policy id: a number for each row, int64 ``[B]``; rows with the same number are of the
        same step. Numbers count from 0 without gaps, and no policy has one twice.

    Raises:
        ValueError: a policy acts for several agents.
    """
    numbers: dict[Hashable, int] = {}
    steps: dict[str, np.ndarray] = {}
    for policy_id, fragments in played.items():
        agents = sorted({one.agent_id for one in fragments})
        if len(agents) > 1:
            raise ValueError(
                f"HAPPO updates agents one after another, but policy {policy_id!r} acts for "
                f"{agents}; give each agent a policy of its own"
            )
        (agent_id,) = agents
        team = trainers[policy_id].policy.teams.get(agent_id, (agent_id,))
        keys = [
            # Steps count from 0 in each life of a group; keys of the second life have "~2".
            (team, one.episode_id, one.key.removeprefix(agent_id), t)
            for one in fragments
            for t in range(one.t, one.t + len(one))
        ]
        assert len(set(keys)) == len(keys), "else one row's factor would be lost in another's"
        steps[policy_id] = np.array([numbers.setdefault(key, len(numbers)) for key in keys])
    return steps
