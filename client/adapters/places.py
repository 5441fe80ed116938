"""Agents that come back after their end under new ids, without bound: each takes a place.

The places are the agents that the environment declares, which are as many as live at a time. An id
that is not among them takes one of its kind (``car_17`` that of a ``car_``) whose agent has ended.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, Literal

from muxrl.client.adapters.adapted_env import read_reset, read_step
from muxrl.client.adapters.simulation import COMMON, SimulationError

logger = logging.getLogger(__name__)

Respawn = Literal["refuse", "same_id", "same_step", "new_ids"]
"""How agents come back in an episode after their end: not at all; in a later step under their id;
so, and an observation that comes with an agent's end is the first one of its next life; or under
ids that the environment has not declared."""

_MAX_FORMER = 1_000
"""Agents that may be paid after their end. An episode may go on for ever, under ever new ids."""
ALL = "__all__"
LAST = "final_observation"
"""In the infos of an agent that ends and is observed again in one step: what it observed last."""


class Places:
    """An RLlib environment whose agents are places.

    Args:
        env: the environment.
        places: its declared agents.
    """

    def __init__(self, env: Any, places: Sequence[Hashable]) -> None:
        self._env = env
        self._places = tuple(places)
        self._place_of: dict[Hashable, Hashable] = {}
        """Of the agents that live."""
        self._former_place: dict[Hashable, Hashable] = {}
        """Of the newest that have ended."""
        self._has_warned = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def reset(self, **kwargs: Any) -> Any:
        """As the environment's."""
        self._place_of, self._former_place = {}, {}
        given, infos = read_reset(self._env.reset(**kwargs), is_by_agent=True)
        seen = {self._find(agent): value for agent, value in given.items()}
        return seen, self._placed(infos)

    def step(self, actions: Mapping[Hashable, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """As the environment's; a last observation is in the infos of its place, under `LAST`."""
        lives = {place: agent for agent, place in self._place_of.items()}
        given, rewards, terminateds, truncateds, infos = read_step(
            self._env.step({lives[place]: action for place, action in actions.items()}),
            is_by_agent=True,
        )
        is_over = terminateds.get(ALL) or truncateds.get(ALL)
        done = {a for a in self._place_of if terminateds.get(a) or truncateds.get(a)}
        earned = self._placed(rewards)
        told = earned, self._placed(terminateds), self._placed(truncateds)
        plain_infos = self._placed(infos)
        others = {
            agent: reward
            for agent, reward in rewards.items()
            if agent not in self._place_of and agent not in (ALL, COMMON)
        }
        if is_over:  # all observations are last ones, and nobody new begins
            self._add(others, earned, lives)
            return self._placed(given), *told, plain_infos
        for agent in done:
            self._former_place.pop(agent, None)  # else it would not be among the newest
            place = self._former_place[agent] = self._place_of.pop(agent)
            if len(self._former_place) > max(_MAX_FORMER, 2 * len(self._places)):
                del self._former_place[next(iter(self._former_place))]
            if given.get(agent) is not None:
                plain_infos[place] = {**plain_infos.get(place, {}), LAST: given[agent]}
        seen = {self._find(a, lives): value for a, value in given.items() if a not in done}
        if others:
            self._add(others, earned, lives)
        return seen, *told, plain_infos

    def _add(
        self,
        rewards: Mapping[Hashable, Any],
        earned: dict[Hashable, Any],
        lives: Mapping[Hashable, Hashable],
    ) -> None:
        """Adds rewards of agents that did not live in the step: of new ones, and after an end.

        They count in the return of a place in which nobody acted; in another they would be taken
        for what its agent has earned.
        """
        for agent, reward in rewards.items():
            place = self._place_of.get(agent, self._former_place.get(agent))
            if place is not None and place not in lives:
                earned[place] = earned.get(place, 0.0) + reward
            elif reward and not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "agent %r was paid %s when it did not act and had no place of its own: that "
                    "counts nowhere, nor will any other such reward",
                    agent,
                    reward,
                )

    def _placed(self, values: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Returns what is said of agents that live, by place, and of all."""
        kept = {a: v for a, v in values.items() if a in (ALL, COMMON)}
        return kept | {self._place_of[a]: v for a, v in values.items() if a in self._place_of}

    def _find(self, agent: Hashable, left: Collection[Hashable] = ()) -> Hashable:
        """Returns the place of an agent; a new one takes its own, or a free one of its kind.

        Rather not one that was left in this step: what it is paid now would be taken for what the
        one before has earned.

        Raises:
            SimulationError: there is none.
        """
        if agent in self._place_of:
            return self._place_of[agent]
        taken = set(self._place_of.values())
        alike = [place for place in self._places if _kind(place) == _kind(agent)]
        free = [place for place in alike if place not in taken]
        if not free:
            raise SimulationError(
                f"the environment spoke of a new agent {agent!r}, and all {len(alike)} places of "
                f"its kind are taken; let possible_agents list as many {_kind(agent)!r} as may "
                "live at a time"
            )
        place = agent if agent in free else min(free, key=lambda place: place in left)
        self._place_of[agent] = place
        return place


def _kind(agent: Hashable) -> str:
    return str(agent).rstrip("0123456789")
