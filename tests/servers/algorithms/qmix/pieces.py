"""A team, episodes of it, and a trainer of its policy, without an environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch

from muxrl.protocol.rows import each_array
from muxrl.servers.algorithms.qmix.trainer import QMIX
from muxrl.servers.algorithms.replay.episodes import EpisodeReplay
from muxrl.servers.algorithms.replay.replay_trainer import as_stored
from muxrl.servers.episodes.trajectories import Trajectory, separated, stack
from muxrl.servers.trainers.interface import PolicySpec, Rows

GAMMA = 0.9

Part = dict[str, np.ndarray]


def spec_of(
    num_members: int = 2, obs_dim: int = 3, num_actions: int = 4, state_size: int = 0
) -> PolicySpec:
    """Returns a team's policy spec; without a size the state is all members' observations."""
    shape = num_members, obs_dim
    return PolicySpec(
        "p",
        ("team",),
        gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32),
        gymnasium.spaces.MultiDiscrete([num_actions] * num_members),
        has_masks=True,
        state_size=state_size or num_members * obs_dim,
        members={"team": tuple("abcdef"[:num_members])},
    )


def make(spec: PolicySpec | None = None, cls: type[QMIX] = QMIX, **settings: Any) -> QMIX:
    """Returns a trainer with these settings, as a server would make it."""
    own = cls.Settings(**{"gamma": GAMMA, **settings})
    own.validate()
    return cls(spec or spec_of(), own)


def observed(
    *of_members: Sequence[float] | None,
    masks: Sequence[Sequence[float]] = ((1, 1, 0, 0), (1, 1, 1, 1)),
    last: Sequence[float] = (-1, -1),
    state: Sequence[float] | None = None,
    obs_dim: int = 3,
) -> Part:
    """Returns what a team observes at one step.

    By default the team is that of `spec_of`, whose first member may take two actions, and the other
    four. None in place of an observation: the member is absent.
    """
    alive = np.array([one is not None for one in of_members], np.float32)
    obs, mask = np.zeros((len(alive), obs_dim), np.float32), np.array(masks, np.float32)
    last_action = np.array(last, np.float32)
    for row, one in enumerate(of_members):
        if one is None:
            mask[row], last_action[row] = np.eye(mask.shape[1])[0], -1
        else:
            obs[row, : len(one)] = one
    whole = obs.ravel() if state is None else np.array(state, np.float32)
    return {
        "obs": obs,
        "state": whole,
        "action_mask": mask,
        "alive": alive,
        "last_action": last_action,
    }


def rows_of(
    parts: Part,
    states: Any = None,
    *,
    should_explore: bool = True,
    seed: int = 0,
    env_steps: int = 0,
) -> Rows:
    """Returns rows to act on, of parts ``[B, ...]``."""
    return Rows(
        parts["obs"],
        parts["action_mask"],
        states,
        ("team",) * len(parts["obs"]),
        should_explore,
        True,
        np.random.default_rng(seed),
        parts["alive"],
        {key: parts[key] for key in ("state", "last_action")},
        env_steps,
    )


def episode(
    seen: Sequence[Part], actions: Any, rewards: Any, *, is_terminated: bool = True
) -> Trajectory:
    """Returns an episode with these observations, which are one more than actions and rewards."""
    whole = Trajectory(
        "e_team", "e", "team", "p", stack(seen), np.array(actions), np.array(rewards, float), {},
        is_terminated=is_terminated, is_truncated=not is_terminated,
    )  # fmt: skip
    return separated(whole)


def play(length: int, seed: int = 0, *, is_terminated: bool = True) -> Trajectory:
    """Returns an episode in which the reward at t is ``100 * seed + t + 1``."""
    rng = np.random.default_rng(seed)
    masks = ((1, 1, 0, 0), (0, 1, 0, 1))
    seen = [observed(rng.normal(size=3), (t, t), masks=masks) for t in range(length + 1)]
    actions = [[t % 2, 3] for t in range(length)]
    rewards = [100.0 * seed + t + 1 for t in range(length)]
    return episode(seen, actions, rewards, is_terminated=is_terminated)


def stored(length: int, seed: int = 0) -> Trajectory:
    """Returns the episode of `play` in the form that replays take."""
    return as_stored(play(length, seed))


def tensors_of(batch: dict[str, Any]) -> dict[str, Any]:
    tensors: dict[str, Any] = each_array(torch.from_numpy, batch)
    return tensors


def update(trainer: QMIX, batch: dict[str, Any]) -> dict[str, float]:
    """Makes one update; returns its metrics."""
    trainer.num_updates += 1
    metrics, _ = trainer.update_on(tensors_of(batch))
    return {n: float(one() if callable(one) else one) for n, one in metrics.items()}


def sample_all(*episodes: Trajectory) -> dict[str, Any]:
    """Returns a batch of all episodes, in the order of their first rewards."""
    replay = EpisodeReplay(len(episodes), seed=0)
    replay.add(*map(as_stored, episodes))
    batch = replay.sample(len(episodes))
    order = np.argsort(batch["rewards"][:, 0])
    obs = {key: value[order] for key, value in batch.pop("obs").items()}
    return {"obs": obs, **{name: column[order] for name, column in batch.items()}}
