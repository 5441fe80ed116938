"""A continuous game for two whose optimum has a closed form; played in this process.

Both members see the same ``c`` in -1..1 and pull with ``a_i`` in -2..2, and

    team reward = - (a_1 + a_2 - c)^2 - k_1 a_1^2 - k_2 a_2^2

Each member is paid the cost of its own pull, and half of the miss. A member alone would pull ``c /
(1 + k_i)``, which together is far too much. The team's optimum shares the work by cost (set the
derivatives to 0): with ``K = 1/k_1 + 1/k_2``

    a_i = c / (k_i (1 + K)),    team reward = - c^2 / (1 + K)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
from tests.servers.resumable import Served
from tests.servers.scripted_store import make_plan

from muxrl.protocol.messages import EndEpisode, StartEpisode, Step
from muxrl.protocol.spaces import Box
from muxrl.servers.config import ServerPlan

COSTS = {"a": 0.1, "b": 0.4}
SMALL = {
    "hidden_dim": 8,
    "batch_size_steps": 8,
    "num_steps_before_learning": 20,
    "min_sample_timesteps_per_iteration": 10,
}
"""Settings with which a trainer's updates begin at once and take next to no time."""
NUM_STEPS = 10
SEEN = np.linspace(-1.0, 1.0, 21)
"""Values of ``c`` by which a team is judged."""
_EASE = sum(1.0 / cost for cost in COSTS.values())


def best_pulls(c: float) -> dict[str, float]:
    """Returns the members' pulls at the team's optimum."""
    return {member: c / (cost * (1.0 + _EASE)) for member, cost in COSTS.items()}


def rewards_of(c: float, pulls: Mapping[str, float]) -> dict[str, float]:
    """Returns each member's reward."""
    miss = (sum(pulls.values()) - c) ** 2
    return {m: -miss / len(pulls) - COSTS[m] * pull**2 for m, pull in pulls.items()}


def plan_of(**fields: Any) -> ServerPlan:
    """Returns the plan of a server for a team of both members."""
    plan = make_plan(dict.fromkeys("ab", Box((1,))), {"team": ("a", "b")})
    pulls = Box((1,), "float32", -2.0, 2.0)
    agents = {a: dataclasses.replace(agent, action_space=pulls) for a, agent in plan.agents.items()}
    return dataclasses.replace(plan, **{"algorithm": "MASAC", "agents": agents, **fields})


def mean_reward(game: Game) -> float:
    """Returns the mean reward of the team's greedy actions."""
    return float(np.mean([sum(rewards_of(c, game.pulls(c)).values()) for c in SEEN]))


@contextmanager
def playing(plan: ServerPlan) -> Iterator[Game]:
    """Gives a game whose policies learn while the ``with`` block lasts."""
    game = Game(plan)
    try:
        yield game
    finally:
        game.end()


def trainer_of(game: Game) -> Any:
    """Returns the trainer that learns for the team."""
    return game.policies.acting.learners["team"]


def weights_of(game: Game) -> dict[str, np.ndarray]:
    """Returns copies of all weights of the team's networks."""
    return {name: one.numpy().copy() for name, one in trainer_of(game).networks().items()}


class Game(Served):
    """Policies in this process that play the game in lockstep.

    Args:
        plan: from `plan_of`.
        seed: from which ``c`` is drawn.
    """

    def __init__(self, plan: ServerPlan, seed: int = 0) -> None:
        super().__init__(plan)
        self._rng = np.random.default_rng(seed)
        self._num_episodes = 0

    def play_steps(self, num_steps: int) -> None:
        """Plays whole episodes for training, of at least so many steps together."""
        for _ in range(-(-num_steps // NUM_STEPS)):
            self._episode(lambda t: float(self._rng.uniform(-1, 1)), NUM_STEPS, mode="train")

    def pulls(self, c: float) -> dict[str, float]:
        """Returns the greedy pulls."""
        actions = self._episode(lambda t: c, num_steps=1, mode="eval")[0]
        return {member: float(action[0]) for member, action in actions.items()}

    def _episode(
        self, draw: Callable[[int], float], num_steps: int, mode: Literal["train", "eval"]
    ) -> list[dict[str, Any]]:
        store = self.policies.store
        episode_id = f"episode-{self._num_episodes}"
        self._num_episodes += 1
        store.accept(StartEpisode(episode_id, mode), 0.0)
        rewards: dict[str, float] = {}
        played = []
        for t in range(num_steps):
            c = draw(t)
            seen = dict.fromkeys("ab", np.array([c], np.float32))
            pending = store.accept(Step(episode_id, t, seen, rewards), 0.0)
            store.finish_frame()
            played.append(dict(self._act(pending)))
            rewards = rewards_of(c, {m: float(a[0]) for m, a in played[-1].items()})
        final = dict.fromkeys("ab", np.zeros(1, np.float32))
        ends = dict.fromkeys("ab", True)
        store.accept(EndEpisode(episode_id, num_steps, False, rewards, ends, {}, final), 0.0)
        store.finish_frame()
        self.wait()
        return played
