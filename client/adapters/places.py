"""Gives places to agents that come back under new ids, of which there may be any number.

The places are the agents that the environment declares, as many as live at a time. An agent with
another id takes a place of its kind whose agent has ended: ``car_17`` that of an ended ``car_``.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

from muxrl.client.adapters.info_masks import has_mask
from muxrl.client.adapters.raw_values import Five
from muxrl.client.adapters.simulation import COMMON, SimulationError
from muxrl.protocol.spaces import ACTION_MASK_KEY

logger = logging.getLogger(__name__)

_MAX_FORMER = 1_000
"""Most ended agents to remember, as they may still get rewards: an episode may go on for ever
under ever new ids."""
ALL = "__all__"
LAST = "final_observation"
"""Key of the final observation in the infos of an agent that ends and is back in one step."""


class Places:
    """Which agents of an environment are in which places.

    Args:
        places: the agents that the environment declares.
    """

    def __init__(self, places: Sequence[Hashable]) -> None:
        self._places = tuple(places)
        self.taken: dict[Hashable, Hashable] = {}
        """By the environment's id of each live agent: its place."""
        self._former_place: dict[Hashable, Hashable] = {}
        """By the environment's id of the newest agents that have ended: their place."""
        self._has_warned = False

    def begin(
        self, given: Mapping[Any, Any], infos: Mapping[Any, Any]
    ) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Returns the observations and infos of a reset by place."""
        self.taken, self._former_place = {}, {}
        seen = {self._find(agent): value for agent, value in given.items()}
        return seen, self._placed(infos)

    def env_actions(self, actions: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Returns actions that are given by place by the environment's ids."""
        lives = {place: agent for agent, place in self.taken.items()}
        return {lives[place]: action for place, action in actions.items()}

    def placed(self, step: Five) -> Five:
        """Returns the values of a step by place; final observations go to the infos, as `LAST`."""
        given, rewards, terminateds, truncateds, infos = step
        lives = set(self.taken.values())
        is_over = terminateds.get(ALL) or truncateds.get(ALL)
        done = {a for a in self.taken if terminateds.get(a) or truncateds.get(a)}
        earned = self._placed(rewards)
        outcome = earned, self._placed(terminateds), self._placed(truncateds)
        plain_infos = self._placed(infos)
        others = {
            agent: reward
            for agent, reward in rewards.items()
            if agent not in self.taken and agent not in (ALL, COMMON)
        }
        if is_over:  # all observations are final, and no new agent begins
            seen = self._placed(given)
        else:
            for agent in done:
                self._former_place.pop(agent, None)  # so that it is added as the newest
                place = self._former_place[agent] = self.taken.pop(agent)
                if len(self._former_place) > max(_MAX_FORMER, 2 * len(self._places)):
                    del self._former_place[next(iter(self._former_place))]
                if given.get(agent) is not None:
                    plain_infos[place] = {**plain_infos.get(place, {}), LAST: given[agent]}
            new = [a for a in given if a not in self.taken and a not in done]
            seen = {self._find(a, lives): value for a, value in given.items() if a not in done}
            for agent in new:
                place, info = self.taken[agent], infos.get(agent, {})
                if place not in lives:
                    plain_infos[place] = info
                else:  # all but the mask is of the agent that has just left
                    kept = dict(plain_infos.get(place, {}))
                    kept.pop(ACTION_MASK_KEY, None)
                    mask = {ACTION_MASK_KEY: info[ACTION_MASK_KEY]} if has_mask(info) else {}
                    plain_infos[place] = kept | mask
        if others:
            self._add(others, earned, lives)
        return seen, *outcome, plain_infos

    def _add(
        self,
        rewards: Mapping[Hashable, Any],
        earned: dict[Hashable, Any],
        lives: Collection[Hashable],
    ) -> None:
        """Adds rewards of agents that did not live in the step: new agents, and ended ones.

        Such a reward counts in the return of its place only if no agent acted there; otherwise it
        would be taken for the acting agent's.
        """
        for agent, reward in rewards.items():
            place = self.taken.get(agent, self._former_place.get(agent))
            if place is not None and place not in lives:
                earned[place] = earned.get(place, 0.0) + reward
            elif reward and not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "agent %r got the reward %s in a step in which it did not act and had no id of "
                    "possible_agents to itself: the reward counts for no agent; further rewards of "
                    "this kind are not logged",
                    agent,
                    reward,
                )

    def _placed(self, values: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Returns the values of live agents by place, with those under `ALL` and `COMMON`."""
        kept = {a: v for a, v in values.items() if a in (ALL, COMMON)}
        return kept | {self.taken[a]: v for a, v in values.items() if a in self.taken}

    def _find(self, agent: Hashable, left: Collection[Hashable] = ()) -> Hashable:
        """Returns the place of an agent; a new agent takes its own, or a free one of its kind.

        A place that was left in this step is taken last: the new agent's reward would be taken for
        the former one's.

        Raises:
            SimulationError: no place is free.
        """
        if agent in self.taken:
            return self.taken[agent]
        taken = set(self.taken.values())
        alike = [place for place in self._places if _kind(place) == _kind(agent)]
        free = [place for place in alike if place not in taken]
        if not free:
            raise SimulationError(
                f"the environment named a new agent {agent!r}, but all {len(alike)} agents of its "
                f"kind in possible_agents are taken; list as many {_kind(agent)!r} there as may "
                "live at a time"
            )
        place = agent if agent in free else min(free, key=lambda place: place in left)
        self.taken[agent] = place
        return place


def _kind(agent: Hashable) -> str:
    return str(agent).rstrip("0123456789")
