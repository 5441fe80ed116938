"""muxrl's own trainers without a server: the policies they are made for, and pieces that they play.

The pieces are of agents alone, or of a team's agents, with a state, an id and absence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
import torch

from muxrl.servers.agents.keys import ACTION_MASK, AGENT_ID, ALIVE, OBS, STATE
from muxrl.servers.agents.log_probs import LOG_PROB
from muxrl.servers.algorithms.actor_critic import IS_STEP, OWN
from muxrl.servers.algorithms.columns import ADVANTAGES, TARGETS
from muxrl.servers.episodes.trajectories import Trajectory, concatenated
from muxrl.servers.trainers.acting import Actors
from muxrl.servers.trainers.interface import PolicySpec, Rows

AGENTS = "ab"
LSTM = {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 5, "max_seq_len": 4}
SMALL = {"fcnet_hiddens": [8]}
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
    """Returns whether the gradient of a trainer's loss by its networks' outputs is the loss's
    slope."""
    predicted = [one.detach().double().requires_grad_() for one in trainer.predicted(batch)]
    batch = {k: one.double() if one.is_floating_point() else one for k, one in batch.items()}

    def loss_of(*predicted: torch.Tensor) -> Any:
        trainer.predicted = lambda batch: predicted
        return trainer.loss(batch, is_reported=False)[0]

    return torch.autograd.gradcheck(loss_of, predicted)


def ignores_padding(trainer: Any, batch: Mapping[str, Any]) -> bool:
    """Returns whether a trainer's loss is the same whatever stands behind the ends of sequences."""
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
    """Returns the actors of such a trainer, which act with it and have it learn."""
    spec = spec or spec_of()
    return Actors(cls.__name__, {"p": spec}, lambda s: make(cls, s, model, **settings), spec.seed)


def play(
    actors: Actors,
    num: int,
    rng: np.random.Generator,
    *,
    name: str = "e",
    reward: Callable[[np.ndarray, Any], float] = lambda seen, action: 1.0,
    see: Callable[[int], np.ndarray] | None = None,
    **how: bool,
) -> Trajectory:
    """Returns a piece of `num` steps, played by the actors; see `Life`."""
    life = Life(actors, rng, episode=name, see=see)
    return life.play("a" * num, reward=lambda seen, action: reward(seen[OBS], action), **how)


def batch_of(actors: Actors, rng: np.random.Generator, **how: Any) -> list[Trajectory]:
    """Returns pieces of 20 steps together: one terminates, one goes on, and one is truncated."""
    pieces = ((7, {"is_terminated": True}), (9, {}), (4, {"is_truncated": True}))
    return [play(actors, num, rng, name=str(num), **ends, **how) for num, ends in pieces]


def mask_of(space: gymnasium.Space, rng: np.random.Generator) -> np.ndarray:
    """Returns a random mask that allows at least one action of each choice."""
    sizes = [int(n) for n in getattr(space, "nvec", [getattr(space, "n", 0)])]
    parts = []
    for size in sizes:
        part = (rng.random(size) < 0.5).astype(np.float32)
        part[rng.integers(size)] = 1.0
        parts.append(part)
    return np.concatenate(parts)


def central_spec(
    action_space: gymnasium.Space = DISCRETE,
    *,
    policy_id: str = "p",
    has_masks: bool = False,
    **fields: Any,
) -> PolicySpec:
    parts = {OBS: box_of(3), STATE: box_of(4), AGENT_ID: box_of(2), ALIVE: box_of(1)}
    if has_masks:
        parts[ACTION_MASK] = box_of(num_logits(action_space))
    return PolicySpec(
        policy_id, tuple(AGENTS), parts[OBS], action_space, has_masks, parts=parts, **fields
    )


def central_actors(
    cls: Any,
    *specs: PolicySpec,
    model: Mapping[str, Any] = SMALL,
    **settings: Any,
) -> Actors:
    """Returns the actors of trainers for these policies, and of their copies that act."""
    by_id = {spec.policy_id: spec for spec in specs or [central_spec()]}
    return Actors(cls.__name__, by_id, lambda s: make(cls, s, model, **settings), 0)


class Life:
    """One agent's life: rows to act on, and pieces to learn from.

    Args:
        actors: of its policy.
        rng: from which observations are drawn.
        agent: "a" or "b".
        episode: its name.
        number: of the life in the episode.
        policy_id: of its policy.
        see: returns the observation at each step; None: it is random.
    """

    def __init__(
        self,
        actors: Actors,
        rng: np.random.Generator,
        agent: str = "a",
        episode: str = "e",
        number: int = 1,
        policy_id: str = "p",
        see: Callable[[int], np.ndarray] | None = None,
    ) -> None:
        self._actors, self._rng, self._agent, self._episode = actors, rng, agent, episode
        self._policy_id = policy_id
        self._id = f"{episode}_{agent}{'' if number == 1 else f'~{number}'}"
        initial: Any = actors.initial_state(policy_id)
        self.states: Any = {key: one[None] for key, one in initial.items()}
        self.t, self._see = 0, see
        self._seen = self._observe(0)

    def _observe(self, t: int) -> dict[str, np.ndarray]:
        spec, rng = self._actors.specs[self._policy_id], self._rng
        seen = {}
        for key, box in spec.parts.items():
            if key == ACTION_MASK:
                seen[key] = mask_of(spec.action_space, rng)
            elif key == OBS and self._see is not None:
                seen[key] = self._see(t).astype(np.float32)
            else:
                seen[key] = rng.normal(size=box.shape).astype(np.float32)
        if AGENT_ID in seen:
            seen[AGENT_ID] = np.eye(2, dtype=np.float32)[AGENTS.index(self._agent)]
        return seen

    def play(
        self,
        steps: str,
        *,
        reward: Callable[[Mapping[str, np.ndarray], Any], float] | None = None,
        **how: bool,
    ) -> Trajectory:
        """Returns the next piece.

        Args:
            steps: a letter for each: "a" the agent acts, "-" it is absent, "x" its action was
                chosen elsewhere.
            reward: of the observation and the action; None: it is random.
            **how: how the piece ends.
        """
        seen, acted, rewards = [], [], []
        first = self.t
        for kind, following in zip(steps, steps[1:] + "a", strict=True):
            if ALIVE in self._seen:
                self._seen[ALIVE][:] = kind != "-"
            seen.append(self._seen)
            one = self._actors.ask(self._policy_id, rows_of(self._seen, self.states, self._actors))
            if kind == "x":
                one.outputs[LOG_PROB][:] = np.inf
            acted.append(one)
            self.states = one.states
            paid = self._rng.normal() if reward is None else reward(self._seen, one.actions[0])
            rewards.append(paid)
            self.t += 1
            self._seen = self._observe(self.t)
            if ALIVE in self._seen:
                self._seen[ALIVE][:] = following != "-"
        parts = {key: np.stack([one[key] for one in [*seen, self._seen]]) for key in self._seen}
        return Trajectory(
            self._id,
            self._episode,
            self._agent,
            self._policy_id,
            parts[OBS],
            np.concatenate([one.actions for one in acted]),
            np.array(rewards),
            {key: concatenated([one.outputs[key] for one in acted]) for key in acted[0].outputs},
            first,
            masks=parts.get(ACTION_MASK),
            states=parts.get(STATE),
            present=parts.get(ALIVE),
            inputs={AGENT_ID: parts[AGENT_ID]} if AGENT_ID in parts else {},
            **how,
        )


def rows_of(
    seen: Mapping[str, np.ndarray],
    states: Any,
    actors: Actors,
    *,
    is_training: bool = True,
) -> Rows:
    """Returns a single row with an agent's observation; without training it is acted on
    greedily."""
    parts = {key: part[None] for key, part in seen.items()}
    return Rows(
        parts.pop(OBS),
        parts.pop(ACTION_MASK, None),
        states or None,
        ("a",),
        is_training,
        is_training,
        actors._rng,
        parts.pop(ALIVE, None),
        parts,
        actors.num_env_steps_sampled,
    )


def learned(actors: Actors, *pieces: Trajectory, num_env_steps: int = 20) -> Any:
    """Has all policies learn, and act with what they learned; returns the metrics by policy."""
    played: dict[str, list[Trajectory]] = {}
    for one in pieces:
        played.setdefault(one.policy_id, []).append(one)
    actors.num_env_steps_sampled += num_env_steps
    metrics = actors.learners.learn_all(played, actors.num_env_steps_sampled)
    actors.publish()
    return metrics
