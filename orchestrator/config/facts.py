"""A simulation's agents, their spaces, and the length of its state.

The environment is made once to read them; those of an external simulation are in its config.
"""

from __future__ import annotations

from dataclasses import dataclass

from muxrl.orchestrator.config.checks import EXTERNAL
from muxrl.orchestrator.config.plain_spaces import read_space
from muxrl.orchestrator.config.schema import SimulationConfig
from muxrl.orchestrator.errors import ConfigError
from muxrl.protocol.spaces import Space


@dataclass(frozen=True)
class SimulationFacts:
    """The agents of a simulation, and what passes between them and it."""

    agents: dict[str, tuple[Space, Space]]
    """Agent to its observation and action space, in the order of `possible_agents`."""
    state_size: int | None = None
    """Length of the global state that it sends; None: it sends none."""


def probe(simulation: SimulationConfig) -> SimulationFacts:
    """Makes the environment, reads its agents and spaces, and closes it.

    Those of an external simulation are read from its config.

    Raises:
        ConfigError: the environment cannot be made, or a space cannot be read.
    """
    if simulation.env == EXTERNAL:
        return _external_facts(simulation)
    from muxrl.client.adapters import SimulationError, make_simulation

    try:
        made = make_simulation(simulation.env, dict(simulation.kwargs))
        try:
            return SimulationFacts(
                agents={
                    agent: (made.observation_spaces[agent], made.action_spaces[agent])
                    for agent in made.possible_agents
                },
                state_size=made.state_size,
            )
        finally:
            made.close()
    except SimulationError as error:
        sentence = " ".join(str(error).split()).removeprefix("simulation ")
        raise ConfigError([f"simulation.env: {sentence}"]) from error


def _external_facts(simulation: SimulationConfig) -> SimulationFacts:
    problems: list[str] = []
    agents: dict[str, tuple[Space, Space]] = {}
    for agent_id, config in simulation.agents.items():
        spaces = []
        for kind in ("observation_space", "action_space"):
            try:
                spaces.append(read_space(getattr(config, kind)))
            except ValueError as error:  # msgspec's errors are ValueErrors, too
                problems.append(f"simulation.agents.{agent_id}.{kind}: {error}")
        if len(spaces) == 2:
            agents[agent_id] = (spaces[0], spaces[1])
    if problems:
        raise ConfigError(problems)
    return SimulationFacts(agents, simulation.state_size)
