"""Gymnasium's vector environments, and those like them with dicts by agent.

https://gymnasium.farama.org/api/vector/

How a copy begins its next episode is said by ``metadata["autoreset_mode"]``, as in Gymnasium:

==========  ==================================================================================
SameStep    ``step`` returns the next episode's observation; the last one is in the infos, under
            ``final_obs``, and with a ``state()`` the last one of that, under ``final_state``
NextStep    ``step`` returns the last observation, and the call after it the next episode's
Disabled    the copies whose episode is over are reset with ``options={"reset_mask": bool [N]}``
==========  ==================================================================================
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muxrl.client.adapters.agent_spaces import space_lookup
from muxrl.client.adapters.gymnasium_env import AGENT
from muxrl.client.adapters.simulation import COMMON, SimulationError
from muxrl.client.adapters.vector_simulation import Rows, VectorStep, copied, row
from muxrl.protocol.rows import each_array
from muxrl.protocol.spaces import Space, from_gymnasium

_MODES = ("SameStep", "NextStep", "Disabled")


class AutoresetEnv:
    """A batched environment as a `VectorSimulation`.

    Args:
        env: a ``gymnasium.vector.VectorEnv``, whose one agent is 'agent'; or an object with
            ``num_envs``, ``possible_agents`` and the methods of PettingZoo's ``ParallelEnv``, whose
            values are arrays with a row for each copy; ``autoreset_mode`` "Disabled" if it says
            none.

    Raises:
        SimulationError: its agents, spaces or ``autoreset_mode`` are none.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self.num_copies = int(env.num_envs)
        self._has_dicts = hasattr(env, "possible_agents")
        ids = list(env.possible_agents) if self._has_dicts else [AGENT]
        self._ids = {str(agent): agent for agent in ids}
        self.possible_agents = tuple(self._ids)
        if not ids:
            raise SimulationError("the environment lists no agents in possible_agents")
        self.observation_spaces = self._spaces("observation")
        self.action_spaces = self._spaces("action")
        self._mode = self._autoreset_mode()
        self._waiting = np.zeros(self.num_copies, bool)
        self._options_of: Callable[[int], Mapping[str, float]] | None = None
        self._is_closed = False
        self._has_reset_some = False
        self.state_size: int | None = None
        self.state_problem = ""
        """See `AdaptedEnv`."""
        if self._has_dicts and callable(getattr(env, "state", None)):
            shape = getattr(getattr(env, "state_space", None), "shape", None)
            if shape is None:
                self.state_problem = (
                    "the environment's state_space, a Box, has to say how long the state() of one "
                    "copy is, and there is none"
                )
            else:
                self.state_size = int(np.prod(shape))

    def reset(self, seed: int | None = None) -> dict[str, Rows]:
        """See `VectorSimulation.reset`."""
        self._waiting[:] = False
        if self._options_of is None:
            given = self._env.reset(seed=seed)
        else:  # all at once first: some have nothing to show of copies that were never reset
            given = self._env.reset(seed=seed, options=dict(self._options_of(0)))
            others = np.arange(self.num_copies) > 0
            if others.any():  # with no seed: the same again would give all the same episode
                return self.reset_some(others, self._began(given))
        return self._began(given)

    def _began(self, given: Any) -> dict[str, Rows]:
        observations, infos = self._pair(given)
        self._refuse_masks(infos)
        return self._observed(observations, "reset()")

    def _refuse_masks(self, infos: Any) -> None:
        given = infos if isinstance(infos, Mapping) else {}
        of_agents = [given, *(one for one in given.values() if isinstance(one, Mapping))]
        if any("action_mask" in one for one in of_agents):
            raise SimulationError(
                "the environment's infos have an action_mask, which a batch of copies is not read "
                "for; have observations be a Dict with 'action_mask', or leave out "
                "simulation.vector_env"
            )

    def ask_options(self, options_of: Callable[[int], Mapping[str, float]]) -> None:
        """See `VectorSimulation.ask_options`."""
        if not self.is_told_to_reset:
            raise SimulationError(
                f"with autoreset_mode {self._mode!r} its copies reset by themselves, so that "
                "simulation.parameters cannot be given; make it with 'Disabled'"
            )
        self._options_of = options_of

    @property
    def is_told_to_reset(self) -> bool:
        """Whether copies begin again by `reset_some`, and not by themselves."""
        return self._mode == "Disabled"

    def reset_some(
        self, is_over: NDArray[np.bool_], observations: Mapping[str, Rows]
    ) -> dict[str, Rows]:
        """Resets some copies, those with the same parameters in one call, and no others.

        Args:
            is_over: bool ``[N]``: which.
            observations: of all copies before; those of the others are to stay.

        Raises:
            SimulationError: they have not stayed, as is seen the first time.
        """
        stay = np.flatnonzero(~is_over & ~self._has_reset_some).tolist()
        before = [copied(row(seen, i)) for seen in observations.values() for i in stay]
        alike: dict[tuple[tuple[str, float], ...], NDArray[np.bool_]] = {}
        for copy in np.flatnonzero(is_over).tolist():
            options = self._options_of(copy) if self._options_of else {}
            mask = alike.setdefault(tuple(options.items()), np.zeros(self.num_copies, bool))
            mask[copy] = True
        for values, mask in alike.items():
            given = self._env.reset(options={**dict(values), "reset_mask": mask})
        begun = self._began(given)
        after = [row(seen, i) for seen in begun.values() for i in stay]
        self._has_reset_some |= bool(stay)
        if not all(map(_is_same, before, after)):
            raise SimulationError(
                f"reset(options={{'reset_mask': ...}}) of copies {np.flatnonzero(is_over).tolist()}"
                f" of {self.num_copies} changed what agents of the others observe; with "
                "autoreset_mode 'Disabled' reset() begins an episode in the copies where the mask "
                "is True, and leaves all others as they are; or say how copies begin again in "
                "metadata['autoreset_mode']"
            )
        return begun

    def step(self, actions: Mapping[str, Rows]) -> VectorStep:
        """See `VectorSimulation.step`."""
        given = self._env.step(
            {self._ids[a]: one for a, one in actions.items()} if self._has_dicts else actions[AGENT]
        )
        if not isinstance(given, tuple | list) or len(given) != 5:
            raise SimulationError(
                "the environment's step() has to return observations, rewards, terminations, "
                "truncations and infos"
            )
        observations = self._observed(given[0], "step()")
        rewards = {a: self._vector(one, "reward", a) for a, one in self._by_agent(given[1]).items()}
        was_waiting, self._waiting = self._waiting, np.zeros(self.num_copies, bool)
        terminated, truncated = self._ends(given[2], given[3], was_waiting)
        infos = given[4] if isinstance(given[4], Mapping) else {}
        self._refuse_masks(infos)
        told = self._infos(infos)
        final_observations: dict[int, dict[str, Any]] = {}
        final_states: dict[int, NDArray[np.float32]] = {}
        over = np.flatnonzero(terminated | truncated).tolist()
        if over:
            final_observations = self._finals(over, observations, infos)
            if (states := self._final_states(infos)) is not None:
                final_states = {copy: states[copy] for copy in over}
            if self._mode == "NextStep":
                self._waiting = terminated | truncated
            elif self.is_told_to_reset:  # the reset may write into what the step returned
                rewards, told, final_observations, final_states = copied(
                    (rewards, told, final_observations, final_states)
                )
                observations = self.reset_some(terminated | truncated, observations)
        return VectorStep(
            observations,
            rewards,
            terminated,
            truncated,
            final_observations,
            ~self._waiting,
            told,
            final_states,
        )

    def state(self) -> NDArray[np.float32] | None:
        """See `VectorSimulation.state`."""
        if self.state_size is None:
            return None
        return self._read_states(self._env.state())

    def _final_states(self, infos: Mapping[str, Any]) -> NDArray[np.float32] | None:
        if self._mode != "SameStep" or self.state_size is None:
            return self.state()
        if (given := infos.get("final_state")) is None:
            raise SimulationError(
                "an episode is over, and the infos have no 'final_state' of it, which state() does "
                "not return any more with autoreset_mode 'SameStep'"
            )
        return self._read_states(given)

    def _read_states(self, given: Any) -> NDArray[np.float32]:
        assert self.state_size is not None
        states = as_rows(given)
        expected = (self.num_copies, self.state_size)
        if states.size != expected[0] * expected[1]:
            raise SimulationError(f"state() has the shape {states.shape}; expected {expected}")
        return np.asarray(states, np.float32).reshape(expected)

    def render(self) -> Any:
        """Returns what the environment shows."""
        return self._env.render()

    def close(self) -> None:
        """See `VectorSimulation.close`."""
        if not self._is_closed:
            self._is_closed = True
            if callable(getattr(self._env, "close", None)):
                self._env.close()

    # --- reading ------------------------------------------------------------------------

    def _spaces(self, kind: str) -> dict[str, Space]:
        lookup: Callable[[Any], Any] = (
            space_lookup(self._env, f"{kind}_space", f"{kind}_spaces")
            if self._has_dicts
            else lambda _: getattr(self._env, f"single_{kind}_space")
        )
        spaces = {}
        for name, agent in self._ids.items():
            try:
                spaces[name] = from_gymnasium(lookup(agent))
            except (AttributeError, KeyError, TypeError, NotImplementedError) as error:
                raise SimulationError(f"the {kind} space of agent {name!r}: {error}") from error
        return spaces

    def _autoreset_mode(self) -> str:
        metadata = getattr(self._env, "metadata", None) or {}
        said = metadata.get("autoreset_mode", "Disabled" if self._has_dicts else None)
        mode = getattr(said, "value", said)
        if mode not in _MODES:
            raise SimulationError(
                f"metadata['autoreset_mode'] of the vector environment is {said!r}; expected one "
                f"of {list(_MODES)}, which say how a copy begins its next episode"
            )
        return str(mode)

    def _pair(self, given: Any) -> Any:
        if isinstance(given, tuple | list) and len(given) == 2:
            return given
        raise SimulationError("the environment's reset() has to return observations and infos")

    def _by_agent(self, given: Any) -> dict[str, Any]:
        if not self._has_dicts:
            return {AGENT: given}
        if not isinstance(given, Mapping):
            raise SimulationError(f"the environment gave a {type(given).__name__}, not a dict")
        return {str(agent): one for agent, one in given.items()}

    def _observed(self, given: Any, where: str) -> dict[str, Rows]:
        observations = {a: as_rows(one) for a, one in self._by_agent(given).items()}
        if missing := [a for a in self.possible_agents if a not in observations]:
            raise SimulationError(
                f"{where} gave no observation of {missing}; in a vector environment all agents act "
                "in each step"
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

    def _ends(
        self, terminations: Any, truncations: Any, was_waiting: NDArray[np.bool_]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Returns whose episode has ended, and whose was cut off.

        Raises:
            SimulationError: in a copy some agents are done, and others not.
        """
        ended, cut = (self._flags(t, w) for t, w in (
            (terminations, "termination"), (truncations, "truncation")))  # fmt: skip
        done = ended | cut
        over = done.all(0) & ~was_waiting
        partly = done.any(0) & ~done.all(0) & ~was_waiting
        if partly.any():
            copy = int(np.flatnonzero(partly)[0])
            gone = [a for a, is_done in zip(self.possible_agents, done[:, copy], strict=True)
                    if is_done]  # fmt: skip
            raise SimulationError(
                f"in copy {copy} the agents {gone} are done and the others are not; in a vector "
                "environment the agents of a copy end together"
            )
        terminated = ended.any(0) & over
        return terminated, over & ~terminated

    def _flags(self, given: Any, what: str) -> NDArray[np.bool_]:
        """Returns flags by agent and copy, bool ``[A, N]``."""
        if not isinstance(given, Mapping):  # the same of all agents
            given = dict.fromkeys(self.possible_agents, given)
        flags = {str(agent): one for agent, one in given.items()}
        if unknown := [agent for agent in flags if agent not in self._ids]:
            raise SimulationError(
                f"step() gave a {what} of {unknown}; the agents are {list(self._ids)}"
            )
        return np.array(
            [
                self._vector(flags.get(a, np.zeros(self.num_copies)), what, a).astype(bool)
                for a in self.possible_agents
            ]
        )

    def _finals(
        self, over: list[int], observations: Mapping[str, Rows], infos: Mapping[str, Any]
    ) -> dict[int, dict[str, Any]]:
        if self._mode != "SameStep":
            return {copy: {a: row(o, copy) for a, o in observations.items()} for copy in over}
        given = infos.get("final_obs", infos.get("final_observation"))
        if given is None:
            raise SimulationError("an episode is over, and the infos have no 'final_obs' of it")
        if isinstance(given, np.ndarray) and given.dtype == object:  # an observation for each copy
            return {
                copy: {str(a): one for a, one in self._by_agent(given[copy]).items()}
                for copy in over
            }
        finals = self._observed(given, "step(), in final_obs,")
        return {copy: {a: row(rows, copy) for a, rows in finals.items()} for copy in over}

    def _infos(self, infos: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        infos = each_array(lambda one: as_rows(one) if hasattr(one, "detach") else one, infos)
        if not self._has_dicts:
            return {AGENT: infos}
        named: dict[str, Mapping[str, Any]] = {}
        for agent, info in infos.items():
            name = str(agent)
            if isinstance(info, Mapping) and (name in self._ids or name == COMMON):
                named[name] = info
        return named


def _is_same(before: Any, after: Any) -> bool:
    if isinstance(before, Mapping):
        return all(_is_same(one, after[key]) for key, one in before.items())
    if isinstance(before, tuple):
        return all(map(_is_same, before, after))
    return np.array_equal(before, after, equal_nan=np.asarray(before).dtype.kind == "f")


def as_rows(value: Any) -> Rows:
    """Returns values as arrays of the processor's memory, in the same dicts and tuples."""
    if isinstance(value, Mapping):
        return {str(key): as_rows(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map(as_rows, value))
    if isinstance(value, np.ndarray):
        return value
    with contextlib.suppress(AttributeError):  # a tensor of torch, wherever it is
        return value.detach().cpu().numpy()
    return np.asarray(value)
