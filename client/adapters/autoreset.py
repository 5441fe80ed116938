"""Adapts Gymnasium's vector environments, and similar ones with dicts by agent.

https://gymnasium.farama.org/api/vector/

``metadata["autoreset_mode"]`` says how a copy begins its next episode, as in Gymnasium:

==========  ==================================================================================
SameStep    ``step`` returns the next episode's observation; the final observation is in the infos
            as ``final_obs``, and if there is a ``state()``, its final value as ``final_state``
NextStep    ``step`` returns the final observation, and the call after it the next episode's
Disabled    the copies whose episode is over are reset with ``options={"reset_mask": bool [N]}``
==========  ==================================================================================
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muxrl.client.adapters.agent_spaces import AgentSpaces, space_lookups
from muxrl.client.adapters.dict_env import Respawn
from muxrl.client.adapters.gymnasium_env import AGENT
from muxrl.client.adapters.info_masks import InfoMasks
from muxrl.client.adapters.places import LAST
from muxrl.client.adapters.raw_values import read_reset, read_step
from muxrl.client.adapters.simulation import COMMON, SimulationError
from muxrl.client.adapters.vector_simulation import Rows, VectorStep, copied, info_of, row
from muxrl.protocol.rows import each_array
from muxrl.protocol.spaces import ACTION_MASK_KEY

_MODES = ("SameStep", "NextStep", "Disabled")


class AutoresetEnv:
    """A vector environment as a `VectorSimulation`.

    All agents are present when an episode begins. An agent that is done before the others leaves,
    or comes back if `respawn` allows it: with "same_id" in a step in which its flag is not set any
    more, with "same_step" at once. An episode is over once all agents are done. Masks in infos are
    arrays with a row for each copy; see `InfoMasks`.

    Args:
        env: a ``gymnasium.vector.VectorEnv``, whose one agent is 'agent'; or an object with
            ``num_envs``, ``possible_agents`` and the methods of PettingZoo's ``ParallelEnv``, with
            arrays that have a row for each copy. The ``autoreset_mode`` of the latter is "Disabled"
            by default.
        respawn: how agents come back after their end; not "new_ids".

    Raises:
        SimulationError: its agents, spaces or ``autoreset_mode`` are missing or invalid.
    """

    def __init__(self, env: Any, respawn: Respawn = "refuse") -> None:
        self._env = env
        self._may_return, self._returns_at_once = respawn != "refuse", respawn == "same_step"
        self._before: Mapping[str, Rows] = {}
        """The observations before the last step, if agents come back at once."""
        self.num_copies = int(env.num_envs)
        self._has_dicts = hasattr(env, "possible_agents")
        if self._has_dicts:
            agents = AgentSpaces(env.possible_agents, *space_lookups(env))
        else:
            agents = AgentSpaces(
                [AGENT],
                lambda _: env.single_observation_space,
                lambda _: env.single_action_space,
            )
        self._agents = agents
        self._ids = {name: agent for agent, name in agents.names.items()}
        self.possible_agents = agents.possible_agents
        self.observation_spaces, self.action_spaces = agents.observed, agents.acted
        self._mode = self._autoreset_mode()
        self._ended = self._flags({}, "")
        """``[N, A]``: agents that are done, in episodes that are not over."""
        self._waiting = np.zeros(self.num_copies, bool)
        self._options_of: Callable[[int], Mapping[str, float]] | None = None
        self._is_closed = self._has_reset_some = False
        self._masks = InfoMasks(self.observation_spaces, self.action_spaces, self._first_infos)
        self.state_size: int | None = None
        self.state_problem = ""
        """See `DictEnv`."""
        if self._has_dicts and callable(getattr(env, "state", None)):
            shape = getattr(getattr(env, "state_space", None), "shape", None)
            if shape is None:
                self.state_problem = (
                    "the environment has a method state(), but no state_space with a shape; set "
                    "state_space to a Box for the state of one copy"
                )
            else:
                self.state_size = int(np.prod(shape))

    @property
    def present(self) -> NDArray[np.bool_]:
        """See `VectorSimulation.present`."""
        return ~(self._ended | self._waiting[:, None])

    def reset(self, seed: int | None = None) -> dict[str, Rows]:
        """See `VectorSimulation.reset`."""
        self._waiting[:] = self._ended[:] = False
        if self._options_of is None:
            return self._began(self._env.reset(seed=seed))
        # All copies are reset first: some environments cannot observe copies that never were.
        begun = self._began(self._env.reset(seed=seed, options=dict(self._options_of(0))))
        others = np.arange(self.num_copies) > 0
        # With no seed: the same again would give all the same episode.
        return self.reset_some(others, begun) if others.any() else begun

    def begin(self, copy: int, seed: int | None, options: Mapping[str, float]) -> None:
        """Does nothing: copies begin episodes by themselves."""

    def _began(self, given: Any) -> dict[str, Rows]:
        seen, infos = read_reset(given, is_by_agent=self._has_dicts)
        observations = self._observed(seen, "reset()")
        self._add_masks(self._infos(infos), observations)
        if self._returns_at_once:
            self._before = copied(observations)
        return observations

    def _first_infos(self) -> Mapping[str, Any]:
        return self._infos(read_reset(self._env.reset(), is_by_agent=self._has_dicts)[1])

    def _add_masks(self, infos: Mapping[str, Any], observations: dict[str, Rows]) -> None:
        if self._masks.sizes:
            self._masks.add(infos, observations, (self.num_copies,))
        for name in filter(self._masks.unread.__contains__, infos):
            if ACTION_MASK_KEY in infos[name]:
                self._masks.refuse(name)

    def ask_options(self, options_of: Callable[[int], Mapping[str, float]]) -> None:
        """See `VectorSimulation.ask_options`."""
        if not self.resets_on_request:
            raise SimulationError(
                "simulation.parameters cannot be given to this vector environment, whose copies "
                f"reset by themselves (autoreset_mode {self._mode!r}); make it with autoreset_mode "
                "'Disabled'"
            )
        self._options_of = options_of

    @property
    def resets_on_request(self) -> bool:
        """Whether copies are reset by `reset_some`, and do not reset themselves."""
        return self._mode == "Disabled"

    def reset_some(
        self, is_over: NDArray[np.bool_], observations: Mapping[str, Rows]
    ) -> dict[str, Rows]:
        """Resets some copies and leaves the others; copies with equal parameters share a call.

        Args:
            is_over: bool ``[N]``: the copies to reset.
            observations: of all copies before the reset; those of the other copies have to stay.

        Raises:
            SimulationError: observations of other copies changed; checked once for each copy.
        """
        stay = np.flatnonzero(~is_over & ~self._has_reset_some).tolist()
        before = [copied(row(seen, i)) for seen in observations.values() for i in stay]
        alike: dict[tuple[tuple[str, float], ...], NDArray[np.bool_]] = {}
        for copy in np.flatnonzero(is_over).tolist():
            options = self._options_of(copy) if self._options_of else {}
            mask = alike.setdefault(tuple(options.items()), np.zeros(self.num_copies, bool))
            mask[copy] = True
        for values, mask in alike.items():
            begun = self._began(self._env.reset(options={**dict(values), "reset_mask": mask}))
            for name in self._masks.sizes:
                now, old = begun[name][ACTION_MASK_KEY], observations[name][ACTION_MASK_KEY]
                begun[name][ACTION_MASK_KEY] = np.where(mask[:, None], now, old)
            observations = begun
        after = [row(seen, i) for seen in begun.values() for i in stay]
        self._has_reset_some |= bool(stay)
        if not all(map(_is_same, before, after)):
            raise SimulationError(
                f"reset(options={{'reset_mask': ...}}) of copies {np.flatnonzero(is_over).tolist()}"
                f" of {self.num_copies} changed the observations of the other copies; with "
                "autoreset_mode 'Disabled' reset() must begin an episode in the copies where the "
                "mask is True, and leave all others as they are; if copies reset by themselves, "
                "metadata['autoreset_mode'] must say how"
            )
        return begun

    def step(self, actions: Mapping[str, Rows]) -> VectorStep:
        """See `VectorSimulation.step`."""
        written = self._agents.write(self._ids, actions)  # a row is written as a value is
        given: Any = written if self._has_dicts else written[AGENT]
        seen, paid, ended, cut, infos = read_step(self._env.step(given), is_by_agent=False)
        observations = self._observed(seen, "step()")
        rewards = {a: self._vector(one, "reward", a) for a, one in self._by_agent(paid).items()}
        infos = infos if isinstance(infos, Mapping) else {}
        by_agent = self._infos(infos)
        self._add_masks(by_agent, observations)
        terminated = self._flags(ended, "termination")
        done = terminated | self._flags(cut, "truncation")
        is_over: NDArray[np.bool_] = np.zeros(self.num_copies, bool)
        final_observations: dict[int, dict[str, Any]] = {}
        final_states: dict[int, NDArray[np.float32]] = {}
        was_ended = self._ended
        if self._may_return:
            self._ended = done & ~self._waiting[:, None]
        if done.any():
            if was_ended.any() or self._waiting.any():  # leaves out agents that were done before
                done &= ~(was_ended | self._waiting[:, None])
                terminated &= done
            if not self._may_return:
                self._ended |= done
            is_over = np.asarray(self._ended.all(1))
            cut = done & ~terminated
            final_observations = self._finals(done, cut, is_over, observations, infos, by_agent)
        if self._returns_at_once:
            self._ended &= is_over[:, None]
            self._before = copied(observations)
        self._waiting = is_over & (self._mode == "NextStep")
        if over := np.flatnonzero(is_over).tolist():
            self._ended &= ~is_over[:, None]
            if (states := self._final_states(infos)) is not None:
                final_states = {copy: states[copy] for copy in over}
            if self.resets_on_request:  # the reset may overwrite the step's arrays
                rewards, by_agent, final_observations, final_states = copied(
                    (rewards, by_agent, final_observations, final_states)
                )
                observations = self.reset_some(is_over, observations)
        return VectorStep(
            observations,
            rewards,
            self.present,
            terminated,
            terminated ^ done,
            is_over,
            final_observations,
            by_agent,
            final_states,
        )

    def leave_out_state(self) -> None:
        """See `VectorSimulation.leave_out_state`."""
        self.state_size = None

    def state(self) -> NDArray[np.float32] | None:
        """See `VectorSimulation.state`."""
        return None if self.state_size is None else self._read_states(self._env.state())

    def _final_states(self, infos: Mapping[str, Any]) -> NDArray[np.float32] | None:
        if self._mode != "SameStep" or self.state_size is None:
            return self.state()
        if (given := infos.get("final_state")) is None:
            raise SimulationError(
                "an episode is over, but the infos have no 'final_state'; with autoreset_mode "
                "'SameStep' state() returns the state of the next episode already, so the last "
                "state of the old one must be in the infos"
            )
        return self._read_states(given)

    def _read_states(self, given: Any) -> NDArray[np.float32]:
        states, expected = as_rows(given), (self.num_copies, self.state_size or 0)
        if states.size != expected[0] * expected[1]:
            shape = states.shape
            raise SimulationError(f"the global state has the shape {shape}; expected {expected}")
        return np.asarray(states, np.float32).reshape(expected)

    def render(self) -> Any:
        """Returns the environment's picture."""
        return self._env.render()

    def close(self) -> None:
        """See `VectorSimulation.close`."""
        if not self._is_closed:
            self._is_closed = True
            if callable(getattr(self._env, "close", None)):
                self._env.close()

    # --- reading ------------------------------------------------------------------------

    def _autoreset_mode(self) -> str:
        metadata = getattr(self._env, "metadata", None) or {}
        chosen = metadata.get("autoreset_mode", "Disabled" if self._has_dicts else None)
        mode = getattr(chosen, "value", chosen)
        if mode not in _MODES:
            raise SimulationError(
                f"metadata['autoreset_mode'] of the vector environment is {chosen!r}; expected one "
                f"of {list(_MODES)}, which say how a copy begins its next episode"
            )
        return str(mode)

    def _by_agent(self, given: Any) -> dict[str, Any]:
        if not self._has_dicts:
            return {AGENT: given}
        if not isinstance(given, Mapping):
            kind = type(given).__name__
            raise SimulationError(f"the environment returned a {kind}; expected a dict by agent")
        return {str(agent): one for agent, one in given.items()}

    def _observed(self, given: Any, where: str) -> dict[str, Rows]:
        observations = {a: as_rows(one) for a, one in self._by_agent(given).items()}
        if missing := [a for a in self.possible_agents if a not in observations]:
            raise SimulationError(
                f"{where} gave no observations of {missing}; a vector environment must give rows "
                "of all agents in every step"
            )
        return {a: observations[a] for a in self.possible_agents}

    def _vector(self, value: Any, what: str, agent: str) -> NDArray[Any]:
        array = as_rows(value)
        if not isinstance(array, np.ndarray) or array.size != self.num_copies:
            raise SimulationError(
                f"the {what} of agent {agent!r} has to be an array of {self.num_copies} numbers, "
                f"one for each copy; got {getattr(array, 'shape', type(array).__name__)}"
            )
        return array.reshape(self.num_copies)

    def _flags(self, given: Any, what: str) -> NDArray[np.bool_]:
        """Returns flags by copy and agent, bool ``[N, A]``."""
        if not isinstance(given, Mapping):  # the same for all agents
            given = dict.fromkeys(self.possible_agents, given)
        named = {str(agent): one for agent, one in given.items()}
        if unknown := [agent for agent in named if agent not in self._ids]:
            raise SimulationError(
                f"step() gave a {what} of {unknown}; the agents are {list(self._ids)}"
            )
        unset = np.zeros(self.num_copies, bool)
        flags = [self._vector(named.get(a, unset), what, a) for a in self.possible_agents]
        # This memory layout makes `all` and `any` over the agents of each copy faster.
        return np.array(flags, bool).T

    def _finals(
        self,
        done: NDArray[np.bool_],
        cut: NDArray[np.bool_],
        is_over: NDArray[np.bool_],
        observations: Mapping[str, Rows],
        infos: Mapping[str, Any],
        by_agent: Mapping[str, Any],
    ) -> dict[int, dict[str, Any]]:
        """Returns by copy, then by agent, the final observations of agents that are done now."""
        finals: dict[int, dict[str, Any]] = {}
        for copy in np.flatnonzero(done.any(1)).tolist():
            agents = list(itertools.compress(self.possible_agents, done[copy].tolist()))
            if self._returns_at_once and not is_over[copy]:  # observations are of the next life
                finals[copy] = self._last_of_lives(copy, agents, cut[copy], by_agent)
                continue
            if self._mode != "SameStep" or not is_over[copy]:
                finals[copy] = {a: row(observations[a], copy) for a in agents}
                continue
            given = infos.get("final_obs", infos.get("final_observation"))
            if given is None:
                raise SimulationError(
                    "an episode is over, but the infos have no 'final_obs' with its last "
                    "observations"
                )
            if isinstance(given, np.ndarray) and given.dtype == object:  # one for each copy
                last = self._by_agent(given[copy])
            else:
                rows = self._observed(given, "step(), in final_obs,")
                last = {a: row(one, copy) for a, one in rows.items()}
            finals[copy] = {a: last[a] for a in agents}
            final_infos = {a: by_agent.get(a, {}).get("final_info") or {} for a in agents}
            self._masks.add({a: info_of(i, copy) for a, i in final_infos.items()}, finals[copy])
        return finals

    def _last_of_lives(
        self,
        copy: int,
        agents: Iterable[str],
        cut: NDArray[np.bool_],
        by_agent: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Returns final observations of agents that are back at once.

        They come from infos; for a truncated agent without one, from before the step.
        """
        finals = {}
        for agent in agents:
            info = info_of(by_agent.get(agent, {}), copy)
            if LAST in info:
                finals[agent] = info[LAST]
            elif cut[self.possible_agents.index(agent)]:
                finals[agent] = row(self._before[agent], copy)
        return finals

    def _infos(self, infos: Any) -> dict[str, Mapping[str, Any]]:
        infos = infos if isinstance(infos, Mapping) else {}
        infos = each_array(lambda one: as_rows(one) if hasattr(one, "detach") else one, infos)
        if not self._has_dicts:
            return {AGENT: infos}
        named = {str(agent): info for agent, info in infos.items() if isinstance(info, Mapping)}
        return {name: one for name, one in named.items() if name in self._ids or name == COMMON}


def _is_same(before: Any, after: Any) -> bool:
    if isinstance(before, Mapping):
        return all(_is_same(one, after[key]) for key, one in before.items())
    if isinstance(before, tuple):
        return all(map(_is_same, before, after))
    return np.array_equal(before, after, equal_nan=np.asarray(before).dtype.kind == "f")


def as_rows(value: Any) -> Rows:
    """Returns values as numpy arrays, in the same dicts and tuples; tensors come to the CPU."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, Mapping):
        return {str(key): as_rows(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map(as_rows, value))
    with contextlib.suppress(AttributeError):  # a tensor of torch, on any device
        return value.detach().cpu().numpy()
    return np.asarray(value)
