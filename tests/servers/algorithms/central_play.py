"""Agents of a team with a state, an id and absence: what their policies are, and what they play."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from tests.servers.algorithms.playing import DISCRETE, box_of, make, mask_of, num_logits

from muxrl.servers.agents.keys import ACTION_MASK, AGENT_ID, ALIVE, OBS, STATE
from muxrl.servers.agents.log_probs import LOG_PROB
from muxrl.servers.episodes.trajectories import Trajectory, concatenated
from muxrl.servers.trainers.acting import Actors
from muxrl.servers.trainers.interface import PolicySpec, Rows

AGENTS = "ab"
LSTM = {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 5, "max_seq_len": 4}
SMALL = {"fcnet_hiddens": [8]}


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
    """Returns trainers for these policies, and their copies that act."""
    by_id = {spec.policy_id: spec for spec in specs or [central_spec()]}
    return Actors(cls.__name__, by_id, lambda s: make(cls, s, model, **settings), 0)


class Life:
    """What one agent lives through: rows to act on, and pieces to learn from.

    Args:
        actors: of its policy.
        rng: what it observes is drawn from.
        agent: a or b.
        episode: its name.
        number: of the life in it.
        policy_id: of its policy.
    """

    def __init__(
        self,
        actors: Actors,
        rng: np.random.Generator,
        agent: str = "a",
        episode: str = "e",
        number: int = 1,
        policy_id: str = "p",
    ) -> None:
        self._actors, self._rng, self._agent, self._episode = actors, rng, agent, episode
        self._policy_id = policy_id
        self._id = f"{episode}_{agent}{'' if number == 1 else f'~{number}'}"
        initial: Any = actors.initial_state(policy_id)
        self.states: Any = {key: one[None] for key, one in initial.items()}
        self._seen = self._observe(alive=1.0)
        self.t = 0

    def _observe(self, alive: float) -> dict[str, np.ndarray]:
        spec, rng = self._actors.specs[self._policy_id], self._rng
        seen = {
            key: rng.normal(size=box.shape).astype(np.float32) for key, box in spec.parts.items()
        }
        seen[AGENT_ID] = np.eye(2, dtype=np.float32)[AGENTS.index(self._agent)]
        seen[ALIVE] = np.array([alive], np.float32)
        if spec.has_masks:
            seen[ACTION_MASK] = mask_of(spec.action_space, rng)
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
            steps: a letter for each: "a" it acts, "-" it is absent, "x" its action was chosen
                elsewhere.
            reward: of what it sees and does; None: at random.
            **how: how the piece ends.
        """
        seen, acted, rewards = [], [], []
        first = self.t
        for i, kind in enumerate(steps):
            self._seen[ALIVE][:] = kind != "-"
            seen.append(self._seen)
            one = self._actors.ask(self._policy_id, rows_of(self._seen, self.states, self._actors))
            if kind == "x":
                one.outputs[LOG_PROB][:] = np.inf
            acted.append(one)
            self.states = one.states
            paid = self._rng.normal() if reward is None else reward(self._seen, one.actions[0])
            rewards.append(paid)
            self._seen = self._observe(alive=float(steps[i + 1 : i + 2] != "-"))
        self.t += len(steps)
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
            states=parts[STATE],
            present=parts[ALIVE],
            inputs={AGENT_ID: parts[AGENT_ID]},
            **how,
        )


def rows_of(
    seen: Mapping[str, np.ndarray],
    states: Any,
    actors: Actors,
    *,
    is_training: bool = True,
) -> Rows:
    """Returns one row, of what an agent sees; greedy if it is not learned from."""
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
    )


def learned(actors: Actors, *pieces: Trajectory, num_env_steps: int = 20) -> Any:
    """Has all learn, and act so; returns the metrics by policy."""
    played: dict[str, list[Trajectory]] = {}
    for one in pieces:
        played.setdefault(one.policy_id, []).append(one)
    actors.num_env_steps_sampled += num_env_steps
    metrics = actors.learners.learn_all(played, actors.num_env_steps_sampled)
    actors.publish()
    return metrics
