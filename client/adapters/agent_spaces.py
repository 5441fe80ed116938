"""An environment's agents: their names, and their spaces as plain data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from typing import Any

from muxrl.client.adapters.env_values import Reader, Writer, reader, writer
from muxrl.client.adapters.raw_values import wrong_actions
from muxrl.client.adapters.simulation import SimulationError
from muxrl.protocol.spaces import Space, from_gymnasium


class NotYet(SimulationError):
    """The environment does not know its agents or their spaces; maybe it does after a reset."""


class Names(dict[Hashable, str]):
    """The name of each of the environment's agent ids; refuses an unknown one."""

    def __missing__(self, agent: Hashable) -> str:
        raise SimulationError(
            f"the environment named agent {agent!r}, which is not in its possible_agents "
            f"{list(self)}; list every agent there that may ever appear, or, with "
            "simulation.respawn: new_ids, as many agents as live at a time"
        )


class AgentSpaces:
    """An environment's agents, with their spaces and the conversion of their values.

    Args:
        ids: the environment's own agent ids, in its order.
        observation_space: returns the Gymnasium observation space of an id.
        action_space: returns the Gymnasium action space of an id.

    Attributes:
        names: by the environment's id: the agent's name.
        readers: by the environment's id; see `env_values.reader`.

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
                f"two of the environment's agent ids {list(self.names)} are the same text when "
                "they are converted to strings; rename one"
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
        """Returns the environment's observations as plain data, by agent name."""
        names, readers = self.names, self.readers
        seen: dict[str, Any] = {}
        for agent, value in given.items():  # faster than a comprehension with few agents
            seen[names[agent]] = readers[agent](value)
        return seen

    def write(
        self, acting: Mapping[str, Hashable], actions: Mapping[str, Any]
    ) -> dict[Hashable, Any]:
        """Converts plain actions for the environment; returns them by its own ids.

        Raises:
            SimulationError: the actions are not those of exactly the acting agents.
        """
        if not acting or actions.keys() != acting.keys():
            raise wrong_actions(acting, actions)
        writers = self._writers
        given: dict[Hashable, Any] = {}
        for name, agent in acting.items():
            given[agent] = writers[agent](actions[name])
        return given


def space_lookups(env: Any, prefix: str = "") -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Returns functions that get an agent's spaces from the environment's methods, or its dicts.

    Args:
        env: the environment.
        prefix: the beginning of the methods' names.
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
    """Returns an agent's Gymnasium space, and the same space as plain data."""
    cause: Exception | None = None
    try:
        space = space_of(agent)
    # The exception for a missing space depends on the framework.
    except (AttributeError, KeyError, TypeError, NotImplementedError) as error:
        space, cause = None, error
    if space is None:
        reason = f" ({type(cause).__name__}: {cause})" if cause else ""
        raise NotYet(
            f"the environment has no {kind} space for agent {agent!r}{reason}; give it a method "
            f"{kind}_space(agent) or a dict {kind}_spaces"
        ) from cause
    try:
        return space, from_gymnasium(space)
    except TypeError as error:
        raise SimulationError(f"the {kind} space of agent {agent!r}: {error}") from None
