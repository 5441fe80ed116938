"""A simulation's agents, their spaces, and the length of its state.

The environment is made once to read them; those of an external simulation are in its config, its
spaces in their plain form: ``{type: box, shape: [4]}``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from muxrl.orchestrator.config.checks import EXTERNAL
from muxrl.orchestrator.config.parameters import at_the_end, find_misread
from muxrl.orchestrator.config.schema import SimulationConfig
from muxrl.orchestrator.errors import ConfigError
from muxrl.protocol import spaces as plain
from muxrl.protocol.patterns import expand
from muxrl.protocol.spaces import Space
from muxrl.protocol.suggestions import did_you_mean, listed, similar_or_known


@dataclass(frozen=True)
class SimulationFacts:
    """The agents of a simulation, and what passes between them and it."""

    agents: dict[str, tuple[Space, Space]]
    """Agent to its observation and action space, in the order of `possible_agents`."""
    state_size: int | None = None
    """Length of the global state that it sends; None: it sends none."""
    notes: tuple[str, ...] = ()
    """What of the environment is not as it should be, and was taken all the same."""
    state_problem: str = ""
    """Why its `state()` gives none, though there is one."""


def probe(simulation: SimulationConfig, *, is_whole: bool = False) -> SimulationFacts:
    """Makes the environment, reads its agents and spaces, plays a step, and closes it.

    It is reset with the parameters that an episode at the end of the run may have. All this happens
    in another process: nothing of the environment is left, nor has changed the working folder.

    Those of an external simulation are read from its config.

    Args:
        simulation: to be made.
        is_whole: plays an episode to its end, twice, and has two copies open if a run would.

    Raises:
        ConfigError: the environment cannot be made, or its agents, spaces, step or parameters are
            wrong.
    """
    if simulation.env == EXTERNAL:
        return _external_facts(simulation)
    if problems := list(find_misread(simulation)):
        raise ConfigError(problems)
    from muxrl.client import first_look
    from muxrl.client.adapters import SimulationError
    from muxrl.client.apart import Apart
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
    )
    try:
        with Apart(first_look.look_at, subject, is_whole) as looking:
            found = looking.result()
        if simulation.vector_env and simulation.num_envs_per_process > 1:
            with Apart(first_look.look_at_batch, subject) as looking:
                looking.result()
        num_copies = simulation.num_processes * simulation.num_envs_per_process
        if is_whole and num_copies > 1 and not simulation.vector_env:
            with Apart(first_look.begin, subject, 1) as other:
                other.result()
                with Apart(first_look.begin, subject, 0) as one:
                    one.result()
    except SimulationError as error:
        sentence = " ".join(str(error).split()).removeprefix("simulation ")
        raise ConfigError([f"simulation.env: {sentence}"]) from error
    return SimulationFacts(found.agents, found.state_size, found.notes, found.state_problem)


def _external_facts(simulation: SimulationConfig) -> SimulationFacts:
    problems: list[str] = []
    agents: dict[str, tuple[Space, Space]] = {}
    declared: dict[str, str] = {}
    for pattern, config in simulation.agents.items():
        if pattern.endswith("*"):
            problems.append(
                f"simulation.agents: {pattern!r} names nobody: a server's agents may be a pattern, "
                f"but here each agent is declared; count them, as "
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
                break  # and so are others, likely
            declared[agent_id] = pattern
            if len(spaces) == 2:
                agents[agent_id] = (spaces[0], spaces[1])
    if problems:
        raise ConfigError(problems)
    return SimulationFacts(agents, simulation.state_size)


_KINDS: dict[str, type[msgspec.Struct]] = {
    "box": plain.Box,
    "discrete": plain.Discrete,
    "multi_discrete": plain.MultiDiscrete,
    "multi_binary": plain.MultiBinary,
    "dict": plain.DictSpace,
    "tuple": plain.TupleSpace,
}


def read_space(tree: Any) -> plain.Space:
    """Returns the space that a mapping describes.

    Raises:
        ValueError: no such kind of space, an unknown or missing key, a value that makes no space.
    """
    for sentence in _misspelt(tree):
        raise ValueError(sentence)
    space: plain.Space = msgspec.convert(tree, plain.Space, strict=False)  # "3" is 3, as elsewhere
    from muxrl.servers.gymnasium_spaces import to_gymnasium

    try:
        to_gymnasium(space)
    except (AssertionError, MemoryError, TypeError, ValueError) as error:
        raise ValueError(
            f"{space} is not a space: {error or 'its numbers are out of range'}"
        ) from (error)
    return space


def _misspelt(tree: Any, where: str = "") -> Iterator[str]:
    """Yields a sentence for each kind and key that no space has; msgspec ignores such keys."""
    at = f"{where}: " if where else ""
    if not isinstance(tree, Mapping):
        yield f"{at}must be a mapping such as {{type: discrete, n: 2}}, got {tree!r}"
        return
    kind = tree.get("type")
    if not isinstance(kind, str) or kind not in _KINDS:
        hint = did_you_mean(str(kind), _KINDS)
        missing = "has no type" if kind is None else f"has the unknown type {kind!r}"
        yield f"{at}{missing}{hint}; types are {listed(_KINDS)}"
        return
    keys = ["type", *_KINDS[kind].__struct_fields__]
    for key in tree:
        if key not in keys:
            yield f"{at}a {kind} space has no {key!r}{similar_or_known(str(key), keys)}"
    inner = tree.get("spaces", ())
    if isinstance(inner, Sequence) and not isinstance(inner, str):
        inner = dict(enumerate(inner))
    if not isinstance(inner, Mapping):
        yield f"{at}spaces must be a mapping or a list of spaces, got {inner!r}"
        return
    for key, sub in inner.items():
        yield from _misspelt(sub, f"{where}.{key}" if where else f"spaces.{key}")
