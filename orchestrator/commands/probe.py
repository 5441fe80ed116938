"""``muxrl probe``: print the section of a config that declares an external environment.

Makes an environment and prints the section 'simulation' of a config with 'env: external': its
agents, their spaces, and the length of its state. Run it on the simulation's own machine: it needs
no more packages than a client.
"""

# This runs where the simulation runs, with the light client alone: no ray, torch, OmegaConf, YAML.

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from muxrl.orchestrator.commands.command import command
from muxrl.orchestrator.commands.terminal import quiet
from muxrl.orchestrator.errors import ConfigError

if TYPE_CHECKING:
    from muxrl.client.adapters import Simulation

_PLAIN = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
"""Text that YAML reads as text without quotes, except for its own words (`_WORDS`)."""
_PLAIN_KEY = re.compile(r"[A-Za-z_][\w.-]*(\{\d+\.\.\d+\}[\w.-]*)?", re.ASCII)
"""The same for a key at the beginning of a line, where braces need no quotes."""
_WORDS = frozenset({"yes", "no", "on", "off", "true", "false", "null"})


@command(only_prints=True, needs=())
def probe(env: str, kwargs: Sequence[str] = (), *, vector_env: bool = False) -> None:
    """Prints the section.

    Args:
        env (ENV): package.module:callable of a PettingZoo, Gymnasium or RLlib environment, or
            gymnasium:ENV_ID, pettingzoo:ENV_ID, or open_spiel:GAME.
        kwargs (key=value): arguments of ENV; a value is read as JSON, or else as text.
        vector_env: ENV steps many copies at once; it is made with num_envs=1.

    Raises:
        ConfigError: the environment cannot be made, or an agent's id cannot be declared.
    """
    from muxrl.client.adapters import SimulationError, make_simulation
    from muxrl.client.first_look import look

    try:
        with quiet():
            simulation = make_simulation(env, dict(map(_argument, kwargs)), vector_env=vector_env)
            notes = look(simulation).notes
            text = external_section(simulation)
    except SimulationError as error:
        raise ConfigError([" ".join(str(error).split())]) from error
    for note in notes:
        sys.stderr.write(f"muxrl: {env}: {note}\n")
    sys.stdout.write(f"# Written by muxrl probe {env}; add the sections servers and stop.\n")
    sys.stdout.write(text)


def external_section(simulation: Simulation) -> str:
    """Returns a config's section ``simulation:``, as YAML, for this simulation as an external one.

    Successive agents that are alike become one entry: ``driver_{0..9}``.

    Raises:
        ConfigError: an agent's id has braces that a config would expand to numbers.
    """
    import msgspec

    from muxrl.protocol.patterns import abridged

    _check_ids(simulation.possible_agents)
    lines = ["simulation:", "  env: external"]
    if simulation.state_size is not None:
        lines.append(f"  state_size: {simulation.state_size}")
    lines.append("  agents:")

    def spaces_of(agent: str) -> tuple[Any, Any]:
        return simulation.observation_spaces[agent], simulation.action_spaces[agent]

    for (observation, action), agents in groupby(simulation.possible_agents, spaces_of):
        for name in abridged(agents):
            key = name if _is_plain(name, _PLAIN_KEY) else json.dumps(name, ensure_ascii=False)
            lines += [
                f"    {key}:",
                f"      observation_space: {_flow(msgspec.to_builtins(observation))}",
                f"      action_space: {_flow(msgspec.to_builtins(action))}",
            ]
    return "\n".join(lines) + "\n"


def _check_ids(agents: Sequence[str]) -> None:
    from muxrl.protocol.patterns import expand

    for agent in agents:
        try:
            is_itself = expand(agent) == [agent]
        except ValueError:
            is_itself = False
        if not is_itself:
            raise ConfigError(
                [
                    f"agent {agent!r} cannot be declared: in a config, braces stand for numbers; "
                    "rename the agent"
                ]
            )


def _argument(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise ConfigError([f"{text!r} must look like key=value, an argument of the environment"])
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _is_plain(text: str, plain: re.Pattern[str]) -> bool:
    return plain.fullmatch(text) is not None and text.lower() not in _WORDS


def _flow(value: Any) -> str:
    """Returns plain data as YAML in one line."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_flow(key)}: {_flow(one)}' for key, one in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_flow, value))}]"
    is_plain = isinstance(value, str) and _is_plain(value, _PLAIN)
    return str(value) if is_plain else json.dumps(value, ensure_ascii=False)
