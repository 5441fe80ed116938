"""An environment's agents: their names, their spaces as plain data, and a reader and a writer for
the values of each."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from muxrl.client.adapters.raw_values import wrong_actions
from muxrl.client.adapters.simulation import SimulationError
from muxrl.protocol.spaces import Space, from_gymnasium, kind_of

Reader = Callable[[Any], Any]
"""Makes an environment's observation a plain one."""
Writer = Callable[[Any], Any]
"""Makes a plain action one that the environment accepts."""


class NotYet(SimulationError):
    """The environment does not say who its agents are, or what they see; maybe after a reset."""


class Names(dict[Hashable, str]):
    """The name of each of the environment's agent ids; refuses an unknown one."""

    def __missing__(self, agent: Hashable) -> str:
        raise SimulationError(
            f"the environment spoke of agent {agent!r}, which is not among its possible_agents "
            f"{list(self)}; list every agent that may ever appear there, or as many as live at a "
            "time, with simulation.respawn: new_ids"
        )


class AgentSpaces:
    """Who acts in an environment, and how its values and those of the protocol become each other.

    Args:
        ids: the environment's own agent ids, in its order.
        observation_space: the Gymnasium space of an id.
        action_space: the Gymnasium space of an id.

    Attributes:
        names: by the environment's id.
        readers: by id; see `reader`.

    Raises:
        SimulationError: there are no agents, two ids have the same name, or a space is missing
            or of a kind that the protocol does not have.
    """

    def __init__(
        self,
        ids: Iterable[Hashable] | None,
        observation_space: Callable[[Any], Any],
        action_space: Callable[[Any], Any],
    ) -> None:
        self.names = Names((agent, str(agent)) for agent in ids or ())
        if not self.names:
            raise NotYet(
                "the environment lists no agents; set possible_agents to every agent that may "
                "ever appear, in its constructor"
            )
        self.possible_agents = tuple(self.names.values())
        if len(set(self.possible_agents)) < len(self.possible_agents):
            raise SimulationError(
                f"two of the environment's agent ids {list(self.names)} have the same name as "
                "strings; rename one"
            )
        self.observed: dict[str, Space] = {}
        """Observation spaces, by name."""
        self.acted: dict[str, Space] = {}
        """Action spaces, by name."""
        self.readers: dict[Hashable, Reader] = {}
        self._writers: dict[Hashable, Writer] = {}
        for agent, name in self.names.items():
            space, self.observed[name] = _plain(observation_space, agent, "observation")
            self.readers[agent] = reader(space)
            space, self.acted[name] = _plain(action_space, agent, "action")
            self._writers[agent] = writer(space)

    def read(self, given: Mapping[Any, Any]) -> dict[str, Any]:
        """Returns the environment's observations plain, by agent name."""
        names, readers = self.names, self.readers
        seen: dict[str, Any] = {}
        for agent, value in given.items():  # faster than a comprehension where agents are few
            seen[names[agent]] = readers[agent](value)
        return seen

    def write(
        self, acting: Mapping[str, Hashable], actions: Mapping[str, Any]
    ) -> dict[Hashable, Any]:
        """Returns plain actions as the environment takes them, by its own ids.

        Raises:
            SimulationError: they are not of exactly the agents to act.
        """
        if not acting or actions.keys() != acting.keys():
            raise wrong_actions(acting, actions)
        writers = self._writers
        given: dict[Hashable, Any] = {}
        for name, agent in acting.items():
            given[agent] = writers[agent](actions[name])
        return given


def space_lookups(env: Any, prefix: str = "") -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Returns functions that ask `env` for an agent's spaces: by its methods, else its dicts.

    Args:
        env: whose agents they are of.
        prefix: with which the methods' names begin.
    """

    def lookup(kind: str, agent: Any) -> Any:
        ask = getattr(env, f"{prefix}{kind}_space", None)
        if callable(ask):
            with warnings.catch_warnings():  # PettingZoo warns when it falls back on its dict
                warnings.simplefilter("ignore")
                return ask(agent)
        return getattr(env, f"{kind}_spaces")[agent]

    return partial(lookup, "observation"), partial(lookup, "action")


def _plain(space_of: Callable[[Any], Any], agent: Hashable, kind: str) -> tuple[Any, Space]:
    """Returns an agent's space, and the same as plain data."""
    cause: Exception | None = None
    try:
        space = space_of(agent)
    # What an environment without such a space raises depends on its framework.
    except (AttributeError, KeyError, TypeError, NotImplementedError) as error:
        space, cause = None, error
    if space is None:
        reason = f" ({type(cause).__name__}: {cause})" if cause else ""
        raise NotYet(
            f"the environment has no {kind} space of agent {agent!r}{reason}; give it a method "
            f"{kind}_space(agent) or a dict {kind}_spaces"
        ) from cause
    try:
        return space, from_gymnasium(space)
    except TypeError as error:
        raise SimulationError(f"the {kind} space of agent {agent!r}: {error}") from None


def as_it_is(value: Any) -> Any:
    """A reader, or a writer, of what is plain already."""
    return value


def reader(space: Any) -> Reader:
    """Returns the function that makes an observation in Gymnasium's `space` plain.

    Arrays are copied, since many environments write each step into the same buffer, and float
    arrays get the declared width. Anything else that is wrong stays as it is: the server refuses
    it and names the agent.
    """
    kind = kind_of(space)
    if kind == "Box" and np.dtype(space.dtype).kind == "f":
        dtype = np.dtype(space.dtype)

        def read_floats(value: Any) -> Any:
            if type(value) is np.ndarray and value.dtype is dtype:
                return value.copy()
            if not isinstance(value, np.ndarray):
                return _kept(value)
            if value.dtype != dtype and value.dtype.kind == "f":
                with np.errstate(over="ignore"):  # becomes infinite, which is refused by name
                    return value.astype(dtype)
            return value.copy()

        return read_floats
    if kind == "Discrete":
        return _read_integer
    if kind == "Dict":
        readers = {str(key): reader(sub) for key, sub in space.spaces.items()}

        def read_dict(value: Any) -> Any:
            if not isinstance(value, Mapping):
                return value
            return {
                str(key): readers.get(str(key), as_it_is)(item)  # the server refuses a wrong key
                for key, item in value.items()
            }

        return read_dict
    if kind == "Tuple":
        items = tuple(reader(sub) for sub in space.spaces)

        def read_tuple(value: Any) -> Any:
            if not isinstance(value, list | tuple) or len(value) != len(items):
                return value
            return tuple(read(item) for read, item in zip(items, value, strict=True))

        return read_tuple
    return _read_array


def _read_integer(value: Any) -> Any:
    if isinstance(value, np.integer) or (
        isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "iu"
    ):
        return int(value)
    return value


def _read_array(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else _kept(value)


def _kept(value: Any) -> Any:
    """Returns what is no array so that its environment cannot change it: a list, or a tensor."""
    if isinstance(value, list):
        return copy.deepcopy(value)
    return value.clone() if hasattr(value, "clone") else value


def writer(space: Any) -> Writer:
    """Returns the function that makes a plain action one of Gymnasium's `space`.

    An array is copied in the space's dtype: Gymnasium's `contains` refuses a wider dtype, and
    arrays from the network are read-only, which an environment may not expect.
    """
    kind = kind_of(space)
    if kind == "Discrete":
        return as_it_is
    if kind == "Dict":
        writers = {key: (str(key), writer(sub)) for key, sub in space.spaces.items()}
        return lambda action: {k: write(action[name]) for k, (name, write) in writers.items()}
    if kind == "Tuple":
        items = tuple(writer(sub) for sub in space.spaces)
        return lambda action: tuple(w(item) for w, item in zip(items, action, strict=True))
    dtype = np.dtype(space.dtype)
    return lambda action: np.array(action, dtype=dtype)
