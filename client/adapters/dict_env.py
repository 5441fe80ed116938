"""The common adapter of environments whose resets and steps can be read as dicts by agent.

It finds out who acts and who has ended, copies values, and refuses wrong ones. Subclasses say how
resets and steps of their kind of environment become dicts by agent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from muxrl.client.adapters.agent_spaces import AgentSpaces, space_lookups
from muxrl.client.adapters.env_state import find_state_size, read_state
from muxrl.client.adapters.info_masks import InfoMasks, has_mask
from muxrl.client.adapters.places import ALL, LAST, Places
from muxrl.client.adapters.raw_values import Five, plain_reward, read_reset, read_step
from muxrl.client.adapters.simulation import COMMON, SimulationError, StepResult
from muxrl.protocol.spaces import ACTION_MASK_KEY
from muxrl.protocol.user_errors import one_line

logger = logging.getLogger(__name__)

Respawn = Literal["refuse", "same_id", "same_step", "new_ids"]
"""How agents may come back in an episode after their end. "refuse": not at all. "same_id": in a
later step under their id. "same_step": likewise, and an observation that comes with an agent's end
is the first one of its next life. "new_ids": under ids that the environment has not declared."""

MAX_IDLE_STEPS = 10_000
"""Maximum number of steps in a row in which no agent is observed. RLlib allows such steps; a
simulation with more of them counts as stuck, and raises instead of hanging."""


class DictEnv:
    """An environment as a `Simulation`, by RLlib's rule: agents that are observed act next.

    Agent ids of any type become strings; `__all__` becomes one flag for each agent. A step in which
    no agent is observed is followed by steps without actions, until an agent acts or the episode is
    over; their rewards are summed.

    Args:
        env: the environment.
        ids: the environment's own agent ids, in its order; None: its `possible_agents`.
        spaces: functions that return the Gymnasium observation space and action space of an id;
            None: the environment is asked in PettingZoo's way.
        has_state: whether its method `state()`, if there is one, gives a global state.
        respawn: how agents come back after their end.

    Raises:
        SimulationError: see `AgentSpaces`.
    """

    is_by_agent: ClassVar[bool] = True
    """Whether the environment's reset and step return dicts by agent."""
    lists_agents: ClassVar[bool] = False
    """Whether its `agents` lists all agents that are there, so that the episode ends once it is
    empty."""
    skips_none = False
    """Whether None as an observation means that an agent is absent, or need not decide."""

    def __init__(
        self,
        env: Any,
        ids: Iterable[Hashable] | None = None,
        spaces: tuple[Callable[[Any], Any], Callable[[Any], Any]] | None = None,
        *,
        has_state: bool = True,
        respawn: Respawn = "refuse",
    ) -> None:
        self._env = env
        self.notes: list[str] = []
        """Sentences on faults of the environment that were tolerated."""
        self.takes_seed = True
        """Whether its reset takes a seed; True until it has refused one."""
        self._agents = AgentSpaces(
            getattr(env, "possible_agents", ()) if ids is None else ids,
            *(spaces or space_lookups(env)),
        )
        self._name_of = {**self._agents.names, COMMON: COMMON}
        """By the environment's key of infos: the agent's name, or `COMMON`."""
        self.possible_agents = self._agents.possible_agents
        self.observation_spaces, self.action_spaces = self._agents.observed, self._agents.acted
        self._may_return = respawn != "refuse"
        self._returns_at_once = respawn in ("same_step", "new_ids")
        self._places = Places(list(self._agents.names)) if respawn == "new_ids" else None
        self._live: dict[Hashable, str] = {}
        """By the environment's id: names of agents that were observed and have not ended."""
        self._finished: set[Hashable] = set()
        self._acting: dict[str, Hashable] = {}
        """By name, in the environment's order: ids of the agents that act next."""
        self._last_known: dict[str, Any] = {}
        """By name: what agents observed last in this episode, before the current observations."""
        self._observed: dict[str, Any] = {}
        """The current observations of the agents that act next."""
        self._before: StepResult | None = None
        """The result of steps before anybody was observed, which the first step is joined to."""
        self._has_warned = self._is_closed = False
        self._masks = InfoMasks(
            self.observation_spaces, self.action_spaces, lambda: self._begin()[1]
        )
        self.state_size: int | None = None
        self.state_problem = ""
        """Why an environment with a method `state()` gives no state; "" if nothing is wrong."""
        if has_state:
            self.state_size, self.state_problem = find_state_size(env, self._reset_env)

    # --- for subclasses -----------------------------------------------------------------

    def _read_reset(self, seen: Any, infos: Any) -> tuple[Mapping[Any, Any], Mapping[Any, Any]]:
        """Returns observations and infos of a reset as dicts by agent."""
        return seen, infos

    def _read_step(self, step: Five, live: Mapping[Hashable, Any]) -> Five:
        """Returns the values of a step as five dicts by agent.

        Args:
            step: the environment's observations, rewards, terminations, truncations and infos.
            live: by the environment's id: the agents in the episode.
        """
        return step

    def _step_env(self, actions: dict[Hashable, Any]) -> Any:
        """Steps the environment with actions by its own ids."""
        return self._env.step(actions)

    def _reset_env(
        self, seed: int | None = None, options: Mapping[str, float] | None = None
    ) -> Any:
        """Resets the environment, even one that takes no seed; returns what it returned."""
        given: dict[str, Any] = {"seed": seed} if self.takes_seed else {}
        if options:
            given["options"] = dict(options)
        try:
            return self._env.reset(**given)
        except TypeError as error:
            if self.takes_seed and "keyword argument 'seed'" in str(error):
                self.takes_seed = False
                self._note("reset() takes no seed, so the episodes differ from run to run")
                return DictEnv._reset_env(self, None, options)
            if "keyword argument 'options'" not in str(error):
                raise
            raise SimulationError(
                f"simulation.parameters {list(options or ())} are given as reset(options=...), but "
                "the environment's reset() takes no options; define reset(seed=None, options=None)"
            ) from error

    # --- an episode ---------------------------------------------------------------------

    def reset(
        self, seed: int | None = None, options: Mapping[str, float] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """See `Simulation.reset`."""
        given, infos = self._begin(seed, options)
        if self._places:
            given, infos = self._places.begin(given, infos)
        if self.skips_none:
            given = _without_none(given)
        names = self._agents.names
        self._live = {agent: names[agent] for agent in given}
        self._acting = {name: agent for agent, name in self._live.items()}
        self._finished = set()
        seen, plain_infos = self._agents.read(given), self._plain_infos(infos)
        self._masks.add(plain_infos, seen)
        self._last_known, self._observed, self._before = {}, seen, None
        if not seen:  # no agent acts yet
            self._before = self._until_observed(self._step_once({}))
            if self._before.is_over:
                raise SimulationError(
                    "the environment's episode ended before any agent had an observation, so that "
                    "no agent could act"
                )
            seen, plain_infos = self._before.observations, self._before.infos
        return seen, plain_infos

    def _begin(
        self, seed: int | None = None, options: Mapping[str, float] | None = None
    ) -> tuple[Mapping[Any, Any], Mapping[Any, Any]]:
        given = read_reset(self._reset_env(seed, options), is_by_agent=self.is_by_agent)
        return self._read_reset(*given)

    def step(self, actions: dict[str, Any]) -> StepResult:
        """See `Simulation.step`."""
        result = self._step_once(self._agents.write(self._acting, actions))
        if self._before is not None:
            result, self._before = _joined(self._before, result), None
        if not (result.observations or result.is_over):
            result = self._until_observed(result)
        return result

    def _until_observed(self, result: StepResult) -> StepResult:
        """Steps without actions until an agent acts or the episode is over."""
        num_idle_steps = 0
        while not (result.observations or result.is_over):
            num_idle_steps += 1
            if num_idle_steps > MAX_IDLE_STEPS:
                raise SimulationError(
                    f"the environment gave no agent an observation for {MAX_IDLE_STEPS} steps and "
                    "did not set '__all__'; an episode without agents must end"
                )
            result = _joined(result, self._step_once({}))
        return result

    def _step_once(self, actions: dict[Hashable, Any]) -> StepResult:
        names, places, live = self._agents.names, self._places, self._live
        if places is None:
            given = self._step_env(actions)
            step = self._read_step(read_step(given, is_by_agent=self.is_by_agent), live)
        else:
            given = self._step_env(places.env_actions(actions))
            step = self._read_step(read_step(given, is_by_agent=True), places.taken)
            step = places.placed(step)
        if self.skips_none:
            step = (_without_none(step[0]), *step[1:])
        seen, rewards, terminateds, truncateds, infos = step
        plain_infos, earned = self._plain_infos(infos), {}
        for agent, reward in rewards.items():
            earned[names[agent]] = reward if type(reward) is float else plain_reward(agent, reward)
        is_anybody_done = any(terminateds.values()) or any(truncateds.values())
        are_the_same = not is_anybody_done and seen.keys() == actions.keys()
        if not are_the_same:
            self._last_known.update(self._observed)
        if seen and (are_the_same or (not is_anybody_done and seen.keys() <= live.keys())):
            observations = self._agents.read(seen)  # the usual, quick case
            result = StepResult(observations, earned, {}, {}, {}, plain_infos, False)
        else:
            done, is_over = self._find_done(step)
            observations, finals = self._sort(step, done, is_over)
            result = StepResult(observations, earned, {}, {}, finals, plain_infos, is_over)
            result = self._remove_actions(done, actions, result)
        if not are_the_same:
            self._acting = {}
            for agent, name in live.items():
                if name in observations:
                    self._acting[name] = agent
        self._observed = observations
        if self._masks.sizes:
            self._masks.add(plain_infos, observations)
        return result

    def _find_done(self, step: Five) -> tuple[dict[Hashable, bool], bool]:
        """Returns by id of agents that are done whether they terminated; and whether all are done.

        An agent that is observed for the first time is in the episode from now on.
        """
        seen, _, terminateds, truncateds, _ = step
        live, finished = self._live, self._finished
        done: dict[Hashable, bool] = {}
        for agent in seen:
            if agent not in live and agent not in finished:
                live[agent] = self._agents.names[agent]
        for flags, is_terminated in ((terminateds, True), (truncateds, False)):
            for agent, is_done in flags.items():
                is_new = is_done and agent != ALL and agent not in finished
                if is_new and (agent in live or not self.lists_agents):
                    done.setdefault(agent, is_terminated)
        all_terminated = bool(terminateds.get(ALL))
        is_over = all_terminated or bool(truncateds.get(ALL))
        if is_over:
            for agent in live:
                done.setdefault(agent, all_terminated)
        return done, is_over

    def _sort(
        self, step: Five, done: Collection[Hashable], is_over: bool
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the observations of agents that act next, and final observations.

        Raises:
            SimulationError: an agent that is done is observed again, or no live agent is observed.
        """
        seen, _, terminateds, truncateds, _ = step
        names, readers, finished = self._agents.names, self._agents.readers, self._finished
        is_strict = self.lists_agents and not self._may_return
        observations: dict[str, Any] = {}
        finals: dict[str, Any] = {}
        for agent, value in seen.items():
            if agent in done and (is_over or not self._returns_at_once):
                finals[names[agent]] = readers[agent](value)
                continue
            if agent in finished and agent not in done:
                # An agent that is only flagged as done again, or still listed in `agents`, does not
                # act again.
                if is_over or terminateds.get(agent, is_strict) or truncateds.get(agent, is_strict):
                    continue
                if not self._may_return:  # as in RLlib's own episodes
                    raise SimulationError(
                        f"the environment gave an observation to agent {agent!r}, which is already "
                        "done in this episode; an agent that returns needs a new agent id, a new "
                        "episode, or simulation.respawn"
                    )
                finished.discard(agent)
                self._live[agent] = names[agent]
            observations[names[agent]] = readers[agent](value)
        if is_strict and not observations and (idle := self._live.keys() - done):
            raise SimulationError(
                f"the environment gave no observation to its live agents "
                f"{[name for agent, name in self._live.items() if agent in idle]}, so no agent "
                "could act; step() must return an observation of every agent in env.agents"
            )
        return observations, finals

    def _remove_actions(
        self, done: Mapping[Hashable, bool], actions: Collection[Hashable], result: StepResult
    ) -> StepResult:
        """Removes agents that are done, and adds their flags and final observations."""
        names, finals = self._agents.names, result.final_observations
        for agent, is_terminated in done.items():
            name = names[agent]
            (result.terminations if is_terminated else result.truncations)[name] = True
            returns = name in result.observations
            if not returns:
                self._finished.add(agent)
                self._live.pop(agent, None)
            if self._returns_at_once and LAST in result.infos.get(name, ()):
                finals[name] = self._agents.readers[agent](result.infos[name][LAST])
            is_asked = agent in actions and not returns
            if not (is_terminated or is_asked or name in finals) and name in self._last_known:
                finals[name] = self._last_known[name]
                self._say_last_known(agent)
        self._masks.add(result.infos, finals)
        if result.is_over or self._may_return:
            return result
        is_over = not self._live if self.lists_agents else len(self._finished) == len(names)
        return result._replace(is_over=is_over)

    def _say_last_known(self, agent: Hashable) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "agent %r was truncated between two of its steps without a final observation, so "
                "its value is bootstrapped from its previous observation; further agents of which "
                "this is true are not logged",
                agent,
            )

    def _plain_infos(self, infos: Mapping[Any, Any]) -> dict[str, dict[str, Any]]:
        """Returns copies of the infos by agent name or `COMMON`, without other keys ('common').

        An environment may fill the same dict again in its next step.

        Raises:
            SimulationError: see `InfoMasks.refuse`.
        """
        names, unread = self._name_of, self._masks.unread
        plain: dict[str, Any] = {}
        for agent, info in infos.items():
            if (name := names.get(agent)) is not None:
                is_dict = type(info) is dict
                plain[name] = {**info} if is_dict else info
                if unread and (ACTION_MASK_KEY in info if is_dict else has_mask(info)):
                    self._masks.refuse(name)
        return plain

    # --- beside episodes ----------------------------------------------------------------

    def state(self) -> NDArray[np.float32] | None:
        """See `Simulation.state`; raises as `read_state`."""
        return None if self.state_size is None else read_state(self._env, self.state_size)

    def render(self) -> Any:
        """Returns the environment's picture, in the render mode with which it was made."""
        return self._env.render()

    def close(self) -> None:
        """See `Simulation.close`; an exception of the environment is only logged, and noted."""
        close = getattr(self._env, "close", None)
        if self._is_closed or close is None:
            return
        self._is_closed = True
        try:
            close()
        except (Exception, SystemExit) as error:  # noqa: BLE001  # the user's code may raise anything
            self._note(f"close() raised {one_line(error)}; the environment counts as closed")

    def _note(self, sentence: str) -> None:
        self.notes.append(sentence)
        logger.warning("the environment's %s", sentence)


def _without_none(given: Mapping[Any, Any]) -> dict[Any, Any]:
    return {agent: value for agent, value in given.items() if value is not None}


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
