"""HAPPO: MAPPO whose agents have networks of their own and are updated one after another.

Kuba et al. 2022, "Trust Region Policy Optimisation in Multi-Agent Reinforcement Learning" (arXiv
2109.11251). If all agents of a team change at once, each for the better while the
others stay, the team may become worse. Here each one's advantages account for those that have
changed before it in the same update.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Self

import torch
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.columns import Columns
from ray.rllib.evaluation.postprocessing import Postprocessing
from torch import Tensor

from muxrl.servers.agents.seats import Seat
from muxrl.servers.algorithms.declared_settings import configured_by
from muxrl.servers.algorithms.entry import AgentSpaces, AlgorithmEntry
from muxrl.servers.algorithms.mappo.export import ActorGraph
from muxrl.servers.algorithms.mappo.joint_steps import JOINT_STEP, JointSteps
from muxrl.servers.algorithms.mappo.mappo import (
    MAPPO,
    MAPPOConfig,
    MAPPOTorchLearner,
    masks_of,
    ratio_of,
)
from muxrl.servers.algorithms.mappo.seating import CENTRAL
from muxrl.servers.algorithms.networks import Networks
from muxrl.servers.algorithms.on_policy.learner import Minibatch
from muxrl.servers.algorithms.settings import TrainingSettings


class HAPPOConfig(MAPPOConfig):
    """MAPPO's, with the same defaults; every agent needs a policy of its own.

    .. code-block:: python

        config = (
            HAPPOConfig()
            .environment("env_with_obs_and_state")
            .multi_agent(policies={"a", "b"}, policy_mapping_fn=lambda agent_id, *a, **k: agent_id)
            .training(lr=7e-4)
        )
    """

    def __init__(self, algo_class: type[Algorithm] | None = None) -> None:
        super().__init__(algo_class=algo_class)
        self.team_of: Mapping[str, Hashable] = {}

    def teams(self, team_of: Mapping[str, Hashable]) -> Self:
        """Sets which agents account for each other's updates.

        Args:
            team_of: RLlib's agent ids to their teams. Agents that are not named are one team.

        Returns:
            This config.
        """
        self.team_of = dict(team_of)
        return self

    def validate(self) -> None:
        super().validate()
        if self.obs_agent_id:
            self._value_error(
                "HAPPO's agents have policies of their own, which need not be told for whom they "
                "act: obs_agent_id must be False, or use MAPPO"
            )
        if self.num_learners > 1:
            self._value_error(
                f"num_learners={self.num_learners}: HAPPO's learner compares the rows of all "
                "agents; set num_learners to 0 or 1"
            )


class HAPPOTorchLearner(MAPPOTorchLearner):
    """MAPPO's losses, one module after another, in an order drawn anew for each update.

    All epochs of a module come before the next one's. Its advantages are multiplied by ``M``, the
    product over the modules before it::

        M = prod_j  pi_j_new(a_j | o_j) / pi_j_old(a_j | o_j)

    for the actions of their agents in the same team, episode and step. An agent that is absent
    there, or whose action was chosen elsewhere, has the factor 1. No gradient flows through ``M``.
    """

    def build(self) -> None:
        super().build()
        if not self.is_lean:
            raise ValueError(
                "HAPPO compares agents row by row: it takes neither recurrent networks nor a "
                "learner pipeline of your own; use MAPPO"
            )
        self._learner_connector.append(JointSteps(self.config.team_of))
        self._losses: dict[str, Tensor] = {}
        """The last one of each module that the update has come to."""

    def _minibatches(
        self, batches: Mapping[str, Mapping[str, Any]], **how: Any
    ) -> Iterator[Minibatch]:
        self._losses = {}
        note_progress = how.pop("note_progress")
        factors = factors_of_nobody(batches)
        module_ids = sorted(batches)
        # torch's generator, from which minibatches are drawn, too: checkpoints have its state.
        order = torch.randperm(len(module_ids)).tolist()
        for place, index in enumerate(order):
            module_id = module_ids[index]
            columns = dict(batches[module_id])
            steps = columns.pop(JOINT_STEP)
            weighted = columns[Postprocessing.ADVANTAGES] * factors[steps]

            def note(share: float, place: int = place) -> None:
                note_progress((place + share) / len(order))
                self.is_reporting = share == 1.0  # each module once, in its own last minibatch

            yield from super()._minibatches(
                {module_id: {**columns, Postprocessing.ADVANTAGES: weighted}},
                **how,
                note_progress=note,
            )
            if place + 1 < len(order):
                factors[steps] *= self._ratios(module_id, columns)

    @torch.no_grad()
    def _ratios(self, module_id: str, columns: dict[str, Any]) -> Tensor:
        """Returns how much likelier a module makes the actions of its batch now, ``[B]``."""
        module = self.module[module_id].unwrapped()
        logits = module._forward_train(columns)[Columns.ACTION_DIST_INPUTS]
        distribution = module.get_train_action_dist_cls().from_logits(logits)
        return ratio_of(distribution, columns, masks_of(columns)[1])

    def _update(self, batch: dict[str, Any], **kwargs: Any) -> tuple[Any, Any, Any]:
        fwd_out, losses, metrics = super()._update(batch, **kwargs)
        # RLlib logs the losses that the last minibatch returns: those of all modules.
        self._losses.update({module_id: loss.detach() for module_id, loss in losses.items()})
        return fwd_out, dict(self._losses), metrics


@configured_by(HAPPOConfig, HAPPOTorchLearner)
class HAPPO(MAPPO):
    """See `HAPPOConfig`. The loop is PPO's: sample a batch, update, hand the weights back."""


def factors_of_nobody(batches: Mapping[str, Mapping[str, Any]]) -> Tensor:
    """Returns ``M`` of all joint steps before any module was updated: ones."""
    steps = [columns[JOINT_STEP] for columns in batches.values()]
    return torch.ones(1 + max(int(of.max()) for of in steps), device=steps[0].device)


def tell_teams(config: AlgorithmConfig, seats: Mapping[str, Seat]) -> None:
    """Tells the config which of a server's agents are in one group; any other is alone."""
    assert isinstance(config, HAPPOConfig)
    config.teams({seat_id: tuple(seat.members) for seat_id, seat in seats.items()})


HAPPO_ENTRY = AlgorithmEntry(
    name="HAPPO",
    summary="MAPPO with a policy for each agent, updated one by one (Kuba et al. 2022)",
    learns_from="newest",
    training=TrainingSettings(HAPPOConfig, unused=frozenset({"obs_agent_id"})),
    networks=Networks(
        refused={
            "use_lstm": "it compares agents row by row, and recurrent ones learn from padded "
            "sequences; use MAPPO",
            "vf_share_layers": "its actors and its critics do not see the same",
        },
        own_module_refused="its critics see the state, apart from what its actors see",
    ),
    seating=replace(CENTRAL, shares_policies=False),
    space_check=AgentSpaces(reads_images=False),
    graph=ActorGraph,
    tell_seats=tell_teams,
)
