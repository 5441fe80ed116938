"""Steps of a team whose members differ, and its networks as loops over rows in float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from ray.rllib.core.columns import Columns
from tests.servers.scripted_store import make_plan

from muxrl.protocol.spaces import Box, Space
from muxrl.servers.agents.seats import Seat
from muxrl.servers.algorithms.joint_critics.config import JointCriticConfig
from muxrl.servers.algorithms.joint_critics.teams import VECTOR_TEAMS
from muxrl.servers.gymnasium_spaces import spaces_of

NUM_ROWS, OBS_DIM, STATE_SIZE = 12, 3, 4


def team_of(
    sees: Mapping[str, Space], acts: Mapping[str, Space], state_size: int | None = None
) -> Seat:
    """Returns the seat of a team whose members are refused when they come late."""
    plan = make_plan(dict(sees), {"team": tuple(sees)}, state_size=state_size)
    agents = {m: replace(agent, action_space=acts[m]) for m, agent in plan.agents.items()}
    return VECTOR_TEAMS.make_seats(replace(plan, agents=agents))["team"]


DIMS = {"a": 2, "b": 1, "c": 3}
TEAM = team_of(
    {m: Box((k + 1,)) for k, m in enumerate(DIMS)},
    {m: Box((dim,), "float32", -1.0, 1.0) for m, dim in DIMS.items()},
    STATE_SIZE,
)
HAS_DIMENSION = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1]])


def build_module(config: JointCriticConfig, team: Seat = TEAM) -> Any:
    """Returns the config's RLModule for a team; its targets are not the critics'."""
    spec = config.get_default_rl_module_spec()
    spec.observation_space, spec.action_space = spaces_of(team)
    spec.model_config = config.model_config
    torch.manual_seed(0)
    module: Any = spec.build()
    module.make_target_networks()
    for _, target in module.get_target_network_pairs():
        for parameter in target.parameters():
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    return module


def make_batch(rng: np.random.Generator) -> dict[str, Any]:
    """Steps before and after which members are absent, some of them terminated."""

    def observed() -> dict[str, np.ndarray]:
        alive = (rng.random((NUM_ROWS, 3)) < 0.7).astype(np.float32)
        obs = rng.normal(size=(NUM_ROWS, 3, OBS_DIM)) * alive[..., None]
        return {
            "obs": obs.astype(np.float32),
            "state": rng.normal(size=(NUM_ROWS, STATE_SIZE)).astype(np.float32),
            "alive": alive,
        }

    batch = {
        Columns.OBS: observed(),
        Columns.ACTIONS: rng.uniform(-1, 1, (NUM_ROWS, 3, 3)).astype(np.float32) * HAS_DIMENSION,
        Columns.REWARDS: rng.normal(size=NUM_ROWS).astype(np.float32),
        Columns.TERMINATEDS: (np.arange(NUM_ROWS) % 3 == 0).astype(np.float32),
        Columns.NEXT_OBS: observed(),
    }
    as_tensors: dict[str, Any] = torch.utils._pytree.tree_map(
        lambda x: torch.from_numpy(np.asarray(x, np.float32)), batch
    )
    return as_tensors


def numbers(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().numpy().astype(np.float64)


def actor_output(actor: Any, obs: np.ndarray, member: int) -> np.ndarray:
    """Returns what an actor that is told ids gives for one member, before ``tanh``."""
    x = np.concatenate([obs, np.eye(3)[member]])
    for layer in (actor[0], actor[2], actor[4]):
        x = numbers(layer.weight) @ x + numbers(layer.bias)
        x = x if layer is actor[4] else np.maximum(x, 0.0)
    return x


def critic_values(critic: Any, x: np.ndarray) -> list[float]:
    """Returns each critic's value of one input."""
    found = []
    for which in range(critic.num):
        y = x
        for layer in (critic.layers[0], critic.layers[2], critic.layers[4]):
            y = y @ numbers(layer.weight)[which] + numbers(layer.bias)[which, 0]
            y = y if layer is critic.layers[4] else np.maximum(y, 0.0)
        found.append(float(y[0]))
    return found
