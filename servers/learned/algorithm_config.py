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
    policies = {}
    mapping = {}
    for seat_id, seat in seats.items():
        policies[seat.policy_id] = PolicySpec(None, seat.observation_space, seat.action_space)
        mapping[seat_id] = seat.policy_id

    def policy_for(agent_id: str, *args: Any, **kwargs: Any) -> str:
        return mapping[agent_id]

    config = entry.make_config(
        plan.settings,
        plan.model,
        plan.rl_module,
        has_masks=any(has_action_mask(seat.observation_space) for seat in seats.values()),
    )
    if not plan.rl_module:
        entry.networks.configure_images(
            config, {p: spec.observation_space for p, spec in policies.items()}
        )
    if entry.tell_seats is not None:
        entry.tell_seats(config, seats)
    config.environment(env=None)
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
    spaces = {s.policy_id: (s.observation_space, s.action_space) for s in seats.values()}
    with torch.random.fork_rng(devices=[]):
        config = rllib_config(plan, entry, seats)
        spec = config.get_multi_rl_module_spec(spaces=spaces, inference_only=inference_only)
        return dict(spec.build().items())
