"""A server's plan as RLlib's config: policies, their spaces and networks, and no environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.rl_module.rl_module import RLModule
from ray.rllib.policy.policy import PolicySpec

from muxrl.servers.agents.masks import has_action_mask
from muxrl.servers.agents.seats import Seat
from muxrl.servers.algorithms.entry import AlgorithmEntry
from muxrl.servers.config import ServerPlan
from muxrl.servers.gymnasium_spaces import Spaces, spaces_of


def rllib_config(
    plan: ServerPlan, entry: AlgorithmEntry, seats: Mapping[str, Seat]
) -> AlgorithmConfig:
    """Returns the config of a server's algorithm.

    Args:
        plan: the server.
        entry: its algorithm.
        seats: by seat id.

    Raises:
        Exception: RLlib refuses it, or the user's module does.
    """
    spaces = _spaces_of_policies(seats)
    mapping = {seat_id: seat.policy_id for seat_id, seat in seats.items()}

    def policy_for(agent_id: str, *args: Any, **kwargs: Any) -> str:
        return mapping[agent_id]

    config = entry.make_config(
        plan.settings,
        plan.model,
        plan.rl_module,
        has_masks=any(has_action_mask(seat.observation_space) for seat in seats.values()),
    )
    if not plan.rl_module:
        entry.networks.configure_images(config, {p: seen for p, (seen, _) in spaces.items()})
    if entry.tell_seats is not None:
        entry.tell_seats(config, seats)
    config.environment(env=None)
    policies = {p: PolicySpec(None, *both) for p, both in spaces.items()}
    return config.multi_agent(policies=policies, policy_mapping_fn=policy_for)


def build_networks(
    plan: ServerPlan, entry: AlgorithmEntry, seats: Mapping[str, Seat], *, inference_only: bool
) -> dict[str, RLModule]:
    """Returns the networks of a server by policy id, and builds nothing else of it.

    Args:
        plan, entry, seats: see `rllib_config`.
        inference_only: whether what only learns is left out.

    Raises:
        Exception: RLlib refuses it, or the user's module does.
    """
    spaces = _spaces_of_policies(seats)
    with torch.random.fork_rng(devices=[]):
        config = rllib_config(plan, entry, seats)
        spec = config.get_multi_rl_module_spec(spaces=spaces, inference_only=inference_only)
        return dict(spec.build().items())


def _spaces_of_policies(seats: Mapping[str, Seat]) -> dict[str, Spaces]:
    alike = {seat.policy_id: seat for seat in seats.values()}
    return {policy_id: spaces_of(seat) for policy_id, seat in alike.items()}
