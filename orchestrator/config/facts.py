"""Finds out a simulation's agents, their spaces, and the length of its state.

The environment is made once to read them. An external simulation declares them in its config, with
spaces in their plain form: ``{type: box, shape: [4]}``.
"""

from __future__ import annotations

from muxrl.client import first_look
from muxrl.client.first_look import SimulationFacts
from muxrl.orchestrator.config.checks import EXTERNAL
from muxrl.orchestrator.config.parameters import at_the_end, find_misread
from muxrl.orchestrator.config.schema import SimulationConfig
from muxrl.orchestrator.config.spaces import read_space
from muxrl.orchestrator.errors import ConfigError
from muxrl.protocol.patterns import expand
from muxrl.protocol.spaces import Space


def probe(simulation: SimulationConfig, *, is_whole: bool = False) -> SimulationFacts:
    """Makes the environment, reads its agents and spaces, plays a step, and closes it.

    It is reset with parameters that an episode at the end of the run may have. All this happens in
    another process, so that nothing of the environment stays in memory, and it cannot change the
    working folder here.

    The facts of an external simulation are read from its config.

    Args:
        simulation: its config.
        is_whole: plays an episode to its end, twice, and opens two copies at a time if a run would.

    Raises:
        ConfigError: the environment cannot be made, or its agents, spaces, step or parameters are
            wrong.
    """
    if simulation.env == EXTERNAL:
        return _external_facts(simulation)
    if problems := list(find_misread(simulation)):
        raise ConfigError(problems)
    from muxrl.client.adapters import SimulationError
    from muxrl.client.apart import ProcessCall
    from muxrl.client.episode_parameters import draw

    ends = {name: at_the_end(given) for name, given in simulation.parameters.items()}
    subject = first_look.Subject(
        simulation.env,
        dict(simulation.kwargs),
        simulation.respawn,
        simulation.vector_env,
        dict(simulation.parameters),
        draw(ends, 0),
        dict(simulation.metrics),
        simulation.on_bad_value,
    )
    try:
        with ProcessCall(first_look.look_at, subject, is_whole) as looking:
            facts: SimulationFacts = looking.result()
        if simulation.vector_env and simulation.num_envs_per_process > 1:
            with ProcessCall(first_look.look_at_batch, subject) as looking:
                looking.result()
        num_copies = simulation.num_processes * simulation.num_envs_per_process
        if is_whole and num_copies > 1 and not simulation.vector_env:
            with ProcessCall(first_look.begin, subject, 1) as other:
                other.result()
                with ProcessCall(first_look.begin, subject, 0) as one:
                    one.result()
    except SimulationError as error:
        sentence = " ".join(str(error).split()).removeprefix("simulation ")
        raise ConfigError([f"simulation.env: {sentence}"]) from error
    return facts


def _external_facts(simulation: SimulationConfig) -> SimulationFacts:
    problems: list[str] = []
    agents: dict[str, tuple[Space, Space]] = {}
    declared: dict[str, str] = {}
    for pattern, config in simulation.agents.items():
        if pattern.endswith("*"):
            problems.append(
                f"simulation.agents: {pattern!r} declares no agent: patterns are for the agents of "
                f"servers, but here each agent needs a name; give numbers, such as "
                f"{pattern[:-1] + '{0..3}'!r}"
            )
            continue
        spaces = []
        for kind in ("observation_space", "action_space"):
            try:
                spaces.append(read_space(getattr(config, kind)))
            except ValueError as error:  # msgspec's errors are ValueErrors, too
                problems.append(f"simulation.agents.{pattern}.{kind}: {error}")
        try:
            names = expand(pattern)
        except ValueError as error:
            problems.append(f"simulation.agents: {error}")
            continue
        for agent_id in names:
            if agent_id in declared:
                problems.append(
                    f"simulation.agents: {agent_id!r} is declared twice, by "
                    f"{declared[agent_id]!r} and {pattern!r}"
                )
                break  # the other names of this pattern are likely declared twice, too
            declared[agent_id] = pattern
            if len(spaces) == 2:
                agents[agent_id] = (spaces[0], spaces[1])
    if problems:
        raise ConfigError(problems)
    return SimulationFacts(agents, simulation.state_size)
