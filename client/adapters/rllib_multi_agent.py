"""An RLlib MultiAgentEnv as a `Simulation`: agents that are observed act next.

https://docs.ray.io/en/latest/rllib/multi-agent-envs.html
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping
from typing import Any

from muxrl.client.adapters.adapted_env import AdaptedEnv, came_back, plain_reward, space_lookup
from muxrl.client.adapters.places import ALL, LAST, Places, Respawn
from muxrl.client.adapters.simulation import SimulationError, StepResult
from muxrl.protocol.spaces import kind_of

logger = logging.getLogger(__name__)

MAX_IDLE_STEPS = 10_000
"""Maximum number of steps in a row in which no agent is observed. RLlib allows such steps; a
simulation with more of them is taken to be stuck, and ends with an error instead of hanging."""


class RLlibMultiAgent(AdaptedEnv):
    """Agent ids of any type become strings; `__all__` becomes one flag for each agent.

    A step in which no agent is observed is followed by further ones with no action, until
    somebody acts or the episode is over; their rewards are summed.

    Nobody need be observed at first, and an observation of None is none.

    Args:
        env: a `ray.rllib.env.multi_agent_env.MultiAgentEnv`, or a `gymnasium.Env` of which
            `has_dicts_by_agent` is true. Where it has a method `state()`, as PettingZoo's have,
            that is the global state.
        respawn: how agents come back after their end; see `Respawn`.
    """

    speaks_by_agent = True

    def __init__(self, env: Any, respawn: Respawn = "refuse") -> None:
        self._may_return = respawn != "refuse"
        self._returns_at_once = respawn in ("same_step", "new_ids")
        if has_dicts_by_agent(env):
            ids = list(env.observation_space.spaces)
            spaces = env.observation_space.spaces.get, env.action_space.spaces.get
        else:
            ids = _agent_ids(env)
            spaces = (
                space_lookup(env, "get_observation_space", "observation_spaces"),
                space_lookup(env, "get_action_space", "action_spaces"),
            )
        super().__init__(Places(env, ids) if respawn == "new_ids" else env, ids, *spaces)
        self._seen: dict[Hashable, str] = {}  # observed in this episode, in order
        self._finished: set[Hashable] = set()
        self._last_known: dict[str, Any] = {}
        """What each agent observed last in this episode."""
        self._before: StepResult | None = None
        """What happened before anybody was observed; the first step joins it."""
        self._has_said = False

    def reset(
        self, seed: int | None = None, options: Mapping[str, float] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """See `Simulation.reset`."""
        given, infos = self._observe_reset(seed, options)
        given = {agent: value for agent, value in given.items() if value is not None}
        self._seen = {agent: self._names[agent] for agent in given}
        self._finished = set()
        seen, plain_infos = self._begin(given, infos)
        self._last_known, self._before = dict(seen), None
        if not seen:  # nobody acts yet
            self._before = self._until_observed(self._step_once({}))
            if self._before.is_over:
                raise SimulationError(
                    "the environment's episode ended before it had observed anybody, so that "
                    "nobody could act"
                )
            seen, plain_infos = self._before.observations, self._before.infos
        return seen, plain_infos

    def step(self, actions: dict[str, Any]) -> StepResult:
        """See `Simulation.step`."""
        result = self._step_once(self._env_actions(actions))
        if self._before is not None:
            result, self._before = _joined(self._before, result), None
        return self._until_observed(result)

    def _until_observed(self, result: StepResult) -> StepResult:
        """Steps on without actions until somebody acts or the episode is over."""
        num_idle_steps = 0
        while not (result.observations or result.is_over):
            num_idle_steps += 1
            if num_idle_steps > MAX_IDLE_STEPS:
                raise SimulationError(
                    f"the environment observed nobody for {MAX_IDLE_STEPS} steps and did not set "
                    "'__all__'; an episode without agents must end"
                )
            result = _joined(result, self._step_once({}))
        if result.observations.keys() != self._acting.keys():
            self._acting = {
                name: agent for agent, name in self._seen.items() if name in result.observations
            }
        return result

    def _step_once(self, actions: dict[Hashable, Any]) -> StepResult:
        names, readers, finished = self._names, self._readers, self._finished
        given, rewards, terminateds, truncateds, infos = self._step_env(actions)
        for agent in given:
            if agent not in self._seen:
                self._seen[agent] = names[agent]

        done: dict[Hashable, bool] = {}  # whether terminated
        for flags, is_terminated in ((terminateds, True), (truncateds, False)):
            for agent, is_done in flags.items():
                if is_done and agent != ALL and agent not in finished:
                    done.setdefault(agent, is_terminated)
        all_terminated = bool(terminateds.get(ALL))
        is_over = all_terminated or bool(truncateds.get(ALL))
        if is_over:
            for agent in self._seen:
                if agent not in finished:
                    done.setdefault(agent, all_terminated)
        observations: dict[str, Any] = {}
        final_observations: dict[str, Any] = {}
        for agent, value in given.items():
            if value is None:  # it is not there, or has nothing to decide
                continue
            if agent in done and (is_over or not self._returns_at_once):
                final_observations[names[agent]] = readers[agent](value)
            elif agent in done or agent not in finished:
                observations[names[agent]] = readers[agent](value)
            elif not (is_over or terminateds.get(agent) or truncateds.get(agent)):
                if not self._may_return:
                    raise came_back(agent)  # as RLlib's own episodes do
                finished.discard(agent)
                observations[names[agent]] = readers[agent](value)
        plain_infos = self._plain_infos(infos)
        for agent, is_terminated in done.items():
            name = names[agent]
            if name not in observations:
                finished.add(agent)
            if self._returns_at_once and LAST in plain_infos.get(name, ()):
                final_observations[name] = readers[agent](plain_infos[name][LAST])
            known = self._last_known.get(name)
            is_asked = agent in actions and name not in observations
            if not (is_terminated or name in final_observations or known is None or is_asked):
                final_observations[name] = known
                self._say_last_known(agent)
        self._last_known.update(observations)
        self._add_masks(plain_infos, observations, final_observations)
        return StepResult(
            observations,
            {names[agent]: plain_reward(agent, reward) for agent, reward in rewards.items()},
            {names[agent]: True for agent, is_terminated in done.items() if is_terminated},
            {names[agent]: True for agent, is_terminated in done.items() if not is_terminated},
            final_observations,
            plain_infos,
            is_over or (len(finished) == len(names) and not self._may_return),
        )

    def _say_last_known(self, agent: Hashable) -> None:
        if not self._has_said:
            self._has_said = True
            logger.warning(
                "agent %r was truncated between two of its steps without a last observation, as "
                "others may be: its value is bootstrapped from what it observed last",
                agent,
            )


def has_dicts_by_agent(env: Any) -> bool:
    """Whether a Gymnasium environment's spaces are two Dicts with the same keys: its agents.

    So MetaDrive and mobile-env step their agents together, in dicts as RLlib's. One agent whose
    observation and action have the same parts looks the same; it has to name one of them otherwise.
    """
    if "MultiAgentEnv" in {base.__name__ for base in type(env).__mro__}:
        return False
    observed: Any = getattr(env, "observation_space", None)
    acted: Any = getattr(env, "action_space", None)
    are_dicts = kind_of(observed) == kind_of(acted) == "Dict"
    return are_dicts and bool(observed.keys() == acted.keys())


def _joined(first: StepResult, second: StepResult) -> StepResult:
    rewards = dict(first.rewards)
    for name, reward in second.rewards.items():
        rewards[name] = rewards.get(name, 0.0) + reward
    return StepResult(
        second.observations,
        rewards,
        first.terminations | second.terminations,
        first.truncations | second.truncations,
        first.final_observations | second.final_observations,
        second.infos,
        second.is_over,
        (*first.earlier_infos, first.infos),
    )


def _agent_ids(env: Any) -> list[Hashable]:
    """Returns all agents; older RLlib environments name them in other attributes."""
    for name in ("possible_agents", "agents", "_agent_ids", "observation_spaces"):
        ids = getattr(env, name, None)
        if ids:
            return sorted(ids, key=str) if isinstance(ids, set) else list(ids)
    return []
