"""Steps of a team of unlike members, and its networks computed by loops over rows in float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from tests.servers.scripted_store import make_plan

from muxrl.protocol.spaces import Box, Space
from muxrl.servers.agents.keys import ACTION_MASK, ALIVE, OBS, STATE
from muxrl.servers.agents.seats import Seat
from muxrl.servers.algorithms.columns import ACTIONS, NEXT_OBS, REWARDS, TERMINATEDS
from muxrl.servers.algorithms.joint_critics.teams import VECTOR_TEAMS
from muxrl.servers.episodes.trajectories import Trajectory
from muxrl.servers.gymnasium_spaces import spaces_of
from muxrl.servers.trainers.interface import PolicySpec, Rows

NUM_ROWS, OBS_DIM, STATE_SIZE = 12, 3, 4


def team_of(
    sees: Mapping[str, Space], acts: Mapping[str, Space], state_size: int | None = None
) -> Seat:
    """Returns the seat of a team; members that come late are refused."""
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


def make_trainer(make: Any, team: Seat = TEAM, **settings: Any) -> Any:
    """Returns a team's trainer whose target networks differ from its other networks."""
    seen, acts = spaces_of(team)
    parts: Any = seen.spaces  # type: ignore[attr-defined]
    spec = PolicySpec(
        "team",
        ("team",),
        parts[OBS],
        acts,
        ACTION_MASK in parts,
        state_size=parts[STATE].shape[0],
        members={"team": team.members},
        parts=parts,
    )
    trainer = make(spec, make.Settings(**{"hidden_dim": 16, **settings}))
    torch.manual_seed(0)
    for copy in (trainer.net.target_critic, trainer.net.target_actor):
        for parameter in [] if copy is None else copy.parameters():
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    return trainer


def observed(rng: np.random.Generator, num: int = NUM_ROWS) -> dict[str, np.ndarray]:
    """Returns the parts of a team's observations, in which some members are absent."""
    alive = (rng.random((num, 3)) < 0.7).astype(np.float32)
    obs = rng.normal(size=(num, 3, OBS_DIM)) * alive[..., None]
    state = rng.normal(size=(num, STATE_SIZE)).astype(np.float32)
    return {OBS: obs.astype(np.float32), STATE: state, ALIVE: alive}


def make_batch(rng: np.random.Generator) -> dict[str, Any]:
    """Returns a batch of steps; some members are absent before or after them, and some
    terminate."""
    batch = {
        OBS: observed(rng),
        ACTIONS: rng.uniform(-1, 1, (NUM_ROWS, 3, 3)).astype(np.float32) * HAS_DIMENSION,
        REWARDS: rng.normal(size=NUM_ROWS).astype(np.float32),
        TERMINATEDS: (np.arange(NUM_ROWS) % 3 == 0).astype(np.float32),
        NEXT_OBS: observed(rng),
    }
    as_tensors: dict[str, Any] = torch.utils._pytree.tree_map(
        lambda x: torch.from_numpy(np.asarray(x, np.float32)), batch
    )
    return as_tensors


def piece_of(rng: np.random.Generator, num: int, name: str = "e", **fields: Any) -> Trajectory:
    """Returns a piece of an episode of `TEAM` with random steps."""
    seen = observed(rng, num + 1)
    actions = (rng.uniform(-1, 1, (num, 3, 3)) * HAS_DIMENSION).astype(np.float32)
    return Trajectory(
        f"{name}_team", name, "team", "team", seen[OBS], actions, rng.normal(size=num), {},
        states=seen[STATE], present=seen[ALIVE], **fields,
    )  # fmt: skip


def rows_of(
    seen: Mapping[str, Any], *, explores: bool = False, seed: int = 0, env_steps: int = 0
) -> Rows:
    """Returns rows for a team to act on, of these arrays or tensors."""
    parts = {key: np.asarray(part) for key, part in seen.items()}
    obs, mask = parts.pop(OBS), parts.pop(ACTION_MASK, None)
    alive = parts.pop(ALIVE, np.ones(obs.shape[:2], np.float32))
    names, rng = ("team",) * len(obs), np.random.default_rng(seed)
    return Rows(obs, mask, None, names, explores, explores, rng, alive, parts, env_steps)


def numbers(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().numpy().astype(np.float64)


def actor_output(actor: Any, obs: np.ndarray, member: int) -> np.ndarray:
    """Returns an actor's output for one member, before ``tanh``; the actor reads the member's id,
    too."""
    x = np.concatenate([obs, np.eye(3)[member]])
    for layer in (actor[0], actor[2], actor[4]):
        x = numbers(layer.weight) @ x + numbers(layer.bias)
        x = x if layer is actor[4] else np.maximum(x, 0.0)
    return x


def critic_values(critic: Any, x: np.ndarray) -> list[float]:
    """Returns each critic's value of one input."""
    found = []
    for which in range(len(critic.weights[0])):
        y = x
        for layer, (weight, bias) in enumerate(zip(critic.weights, critic.biases, strict=True)):
            y = (y if layer == 0 else np.maximum(y, 0.0)) @ numbers(weight)[which]
            y = y + numbers(bias)[which, 0]
        found.append(float(y[0]))
    return found
