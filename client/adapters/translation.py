"""Between an environment's agent ids, spaces and values and the plain ones of the protocol.

All that can be known of an agent before the first step is worked out here once: the step
path looks it up in dicts by the environment's own agent id.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muxrl.client.adapters.simulation import SimulationError
from muxrl.protocol.spaces import Space, from_gymnasium

Reader = Callable[[Any], Any]
"""Makes an environment's observation a plain one."""
Writer = Callable[[Any], Any]
"""Makes a plain action one that the environment accepts."""


class Names(dict[Hashable, str]):
    """The string name of each of the environment's agent ids; refuses an unknown one."""

    def __missing__(self, agent: Hashable) -> str:
        raise SimulationError(
            f"the environment spoke of agent {agent!r}, which is not among its possible_agents "
            f"{list(self)}; list every agent that may ever appear there"
        )


class Agents:
    """The agents of one environment and the way their values are translated.

    Args:
        ids: the environment's own ids, in its order.
        observation_space: the Gymnasium space of an id.
        action_space: the Gymnasium space of an id.

    Raises:
        SimulationError: no agents, two ids of one name, or no space, or a space that cannot
            travel.
    """

    def __init__(
        self,
        ids: Iterable[Hashable],
        observation_space: Callable[[Any], Any],
        action_space: Callable[[Any], Any],
    ) -> None:
        self.names = Names((agent, str(agent)) for agent in ids)
        self.possible: tuple[str, ...] = tuple(self.names.values())
        if not self.possible:
            raise SimulationError(
                "the environment lists no agents; set possible_agents to every agent that may "
                "ever appear, in its constructor"
            )
        if len(set(self.possible)) < len(self.possible):
            raise SimulationError(
                f"two of the environment's agent ids {list(self.names)} have the same name as "
                "strings; rename one"
            )
        self.observation_spaces: dict[str, Space] = {}
        self.action_spaces: dict[str, Space] = {}
        self.readers: dict[Hashable, Reader] = {}
        self.writers: dict[Hashable, Writer] = {}
        for agent, name in self.names.items():
            space = _ask(observation_space, agent, "observation")
            self.observation_spaces[name] = _plain(space, agent, "observation")
            self.readers[agent] = reader(space)
            space = _ask(action_space, agent, "action")
            self.action_spaces[name] = _plain(space, agent, "action")
            self.writers[agent] = writer(space)

    def infos(self, infos: Mapping[Any, Any]) -> dict[str, dict[str, Any]]:
        """Returns the infos by agent name; a key that is no agent ('common') is left out."""
        names = self.names
        return {names[agent]: info for agent, info in infos.items() if agent in names}


def space_lookup(env: Any, method: str, mapping: str) -> Callable[[Any], Any]:
    """Returns a function that asks `env` for an agent's space: by its method, else its dict."""

    def lookup(agent: Any) -> Any:
        ask = getattr(env, method, None)
        if callable(ask):
            with warnings.catch_warnings():  # PettingZoo warns when it falls back on its dict
                warnings.simplefilter("ignore")
                return ask(agent)
        return getattr(env, mapping)[agent]

    return lookup


def _ask(space_of: Callable[[Any], Any], agent: Hashable, kind: str) -> Any:
    cause: Exception | None = None
    try:
        space = space_of(agent)
    # By these an environment without such a space tells so, each framework by another.
    except (AttributeError, KeyError, TypeError, NotImplementedError) as error:
        space, cause = None, error
    if space is None:
        reason = f" ({type(cause).__name__}: {cause})" if cause else ""
        raise SimulationError(
            f"the environment has no {kind} space of agent {agent!r}{reason}; give it a method "
            f"{kind}_space(agent) or a dict {kind}_spaces"
        ) from cause
    return space


def _plain(space: Any, agent: Hashable, kind: str) -> Space:
    try:
        return from_gymnasium(space)
    except TypeError as error:
        raise SimulationError(f"the {kind} space of agent {agent!r}: {error}") from None


def _same(value: Any) -> Any:
    return value


def reader(space: Any) -> Reader:
    """Returns the function that makes an observation in Gymnasium's `space` plain.

    Arrays are copied, for many environments write each step into the same buffer, and a
    float array gets the declared width. Whatever else is wrong is left as it is, for the
    server to refuse with the agent's name.
    """
    kind = type(space).__name__
    if kind == "Box" and np.dtype(space.dtype).kind == "f":
        dtype = np.dtype(space.dtype)

        def read_floats(value: Any) -> Any:
            if isinstance(value, np.ndarray):
                return value.astype(dtype if value.dtype.kind == "f" else value.dtype)
            return value

        return read_floats
    if kind == "Discrete":
        return _read_integer
    if kind == "Dict":
        readers = {str(key): reader(sub) for key, sub in space.spaces.items()}

        def read_dict(value: Any) -> Any:
            if not isinstance(value, Mapping):
                return value
            return {
                str(key): readers.get(str(key), _same)(item)  # a wrong key is for the server
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
    return value.copy() if isinstance(value, np.ndarray) else value


def writer(space: Any) -> Writer:
    """Returns the function that makes a plain action one of Gymnasium's `space`.

    An array is copied in the space's dtype: Gymnasium's `contains` refuses a wider one, and
    arrays that came over the wire are read-only, which an environment may not expect.
    """
    kind = type(space).__name__
    if kind == "Discrete":
        return _same
    if kind == "Dict":
        writers = {key: (str(key), writer(sub)) for key, sub in space.spaces.items()}
        return lambda action: {k: write(action[name]) for k, (name, write) in writers.items()}
    if kind == "Tuple":
        items = tuple(writer(sub) for sub in space.spaces)
        return lambda action: tuple(w(item) for w, item in zip(items, action, strict=True))
    dtype = np.dtype(space.dtype)
    return lambda action: np.array(action, dtype=dtype)


def state_size_of(env: Any) -> int | None:
    """Returns the length of `env.state()` flattened, None if the environment has none.

    An environment that does not declare a `state_space` is reset once to look at its state.
    """
    state = getattr(env, "state", None)
    if not callable(state) or _is_inherited_stub(env):
        return None
    space = getattr(env, "state_space", None)
    shape = getattr(space, "shape", None)
    if shape is not None:
        return math.prod(shape)
    env.reset()
    try:
        return int(np.size(state()))
    except NotImplementedError:  # a stub that `_is_inherited_stub` does not know, or a wrapper's
        return None


def _is_inherited_stub(env: Any) -> bool:
    method = getattr(type(getattr(env, "unwrapped", env)), "state", None)
    # PettingZoo's base classes have a state() that only raises.
    return getattr(method, "__qualname__", "") in {"ParallelEnv.state", "AECEnv.state"}


def flat_state(env: Any, size: int | None) -> NDArray[np.float32] | None:
    """Returns `env.state()` as a float32 array of length `size`, None where `size` is None.

    Raises:
        SimulationError: the state has another length than the environment declared.
    """
    if size is None:
        return None
    state = np.array(env.state(), dtype=np.float32).reshape(-1)
    if state.size != size:
        raise SimulationError(
            f"the environment's state() gave {state.size} numbers and {size} were declared; "
            "make state_space and state() agree"
        )
    return state
