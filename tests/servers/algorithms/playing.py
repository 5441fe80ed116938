"""Trainers of muxrl's own without a server: what they are made for, and pieces that they play."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
import torch

from muxrl.servers.agents.keys import ACTION_MASK, OBS
from muxrl.servers.agents.log_probs import LOG_PROB
from muxrl.servers.algorithms.actor_critic import IS_STEP, OWN
from muxrl.servers.algorithms.columns import ADVANTAGES, TARGETS
from muxrl.servers.episodes.trajectories import Trajectory, concatenated
from muxrl.servers.trainers.acting import Actors
from muxrl.servers.trainers.interface import PolicySpec

DISCRETE = gymnasium.spaces.Discrete(3)
SPACES: dict[str, gymnasium.Space] = {
    "discrete": DISCRETE,
    "multi": gymnasium.spaces.MultiDiscrete([2, 3]),
    "box": gymnasium.spaces.Box(-1.0, 1.0, (2,)),
}


def box_of(*shape: int) -> gymnasium.spaces.Box:
    return gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32)


def spec_of(
    action_space: gymnasium.Space = DISCRETE,
    shape: tuple[int, ...] = (4,),
    *,
    has_masks: bool = False,
    **fields: Any,
) -> PolicySpec:
    parts = {OBS: box_of(*shape)}
    if has_masks:
        parts[ACTION_MASK] = box_of(num_logits(action_space))
    return PolicySpec("p", ("a",), parts[OBS], action_space, has_masks, parts=parts, **fields)


def has_its_slope(trainer: Any, batch: Mapping[str, Any]) -> bool:
    """Whether the gradient of a trainer's loss, by what its networks say, is the loss's slope."""
    predicted = [one.detach().double().requires_grad_() for one in trainer.predicted(batch)]
    batch = {k: one.double() if one.is_floating_point() else one for k, one in batch.items()}

    def loss_of(*predicted: torch.Tensor) -> Any:
        trainer.predicted = lambda batch: predicted
        return trainer.loss(batch, is_reported=False)[0]

    return torch.autograd.gradcheck(loss_of, predicted)


def ignores_padding(trainer: Any, batch: Mapping[str, Any]) -> bool:
    """Whether what stands behind the ends of sequences makes no difference to a trainer's loss."""
    batch[OWN][~batch[IS_STEP]] = True
    before = trainer.loss(batch, is_reported=False)[0].item()
    for key in (ADVANTAGES, LOG_PROB, TARGETS):
        batch[key][~batch[IS_STEP]] += 3.0
    after: float = trainer.loss(batch, is_reported=False)[0].item()
    return after == before


def num_logits(space: gymnasium.Space) -> int:
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return int(space.nvec.sum())
    return int(getattr(space, "n", 0))


def make(
    cls: Any,
    spec: PolicySpec | None = None,
    model: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Any:
    """Returns a trainer with these settings."""
    own = cls.Settings(**settings)
    for name, value in (model or {}).items():
        setattr(own.model, name, value)
    return cls(spec or spec_of(), own)


def actors_of(
    cls: Any,
    spec: PolicySpec | None = None,
    model: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Actors:
    """Returns what acts with such a trainer, and has it learn."""
    spec = spec or spec_of()
    return Actors(cls.__name__, {"p": spec}, lambda s: make(cls, s, model, **settings), spec.seed)


def play(
    actors: Actors,
    num: int,
    rng: np.random.Generator,
    *,
    name: str = "e",
    reward: Callable[[np.ndarray, Any], float] = lambda seen, action: 1.0,
    is_terminated: bool = False,
    is_truncated: bool = False,
    see: Callable[[int], np.ndarray] | None = None,
) -> Trajectory:
    """Returns a piece of so many steps, by what acts, from random observations and masks."""
    from muxrl.servers.trainers.interface import Rows

    spec = actors.specs["p"]
    initial = getattr(actors.learners["p"], "initial_state", dict)()
    states: Any = {key: one[None] for key, one in initial.items()}
    seen, masks, acted, rewards = [], [], [], []
    for t in range(num + 1):
        obs = rng.normal(size=spec.observation_space.shape) if see is None else see(t)
        seen.append(obs.astype(np.float32))
        if spec.has_masks:
            masks.append(mask_of(spec.action_space, rng))
        if t == num:
            break
        rows = Rows(
            seen[-1][None],
            masks[-1][None] if masks else None,
            states,
            ("a",),
            True,
            True,
            actors._rng,
            env_steps=actors.num_env_steps_sampled,
        )
        acted.append(actors.ask("p", rows))
        states = acted[-1].states
        rewards.append(reward(seen[-1], acted[-1].actions[0]))
    return Trajectory(
        f"{name}_a",
        name,
        "a",
        "p",
        np.array(seen),
        np.concatenate([one.actions for one in acted]),
        np.array(rewards),
        {key: concatenated([one.outputs[key] for one in acted]) for key in acted[0].outputs},
        is_terminated=is_terminated,
        is_truncated=is_truncated,
        masks=np.array(masks) if masks else None,
    )


def mask_of(space: gymnasium.Space, rng: np.random.Generator) -> np.ndarray:
    """Returns a mask that leaves an action of each choice."""
    sizes = [int(n) for n in getattr(space, "nvec", [getattr(space, "n", 0)])]
    parts = []
    for size in sizes:
        part = (rng.random(size) < 0.5).astype(np.float32)
        part[rng.integers(size)] = 1.0
        parts.append(part)
    return np.concatenate(parts)
