"""Checks the form of what an environment's reset and step return."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np

from muxrl.client.adapters.simulation import SimulationError

Five = tuple[Any, Any, Any, Any, Any]
"""Observations, rewards, terminations, truncations and infos."""

_PARTS = ("observations", "rewards", "terminations", "truncations", "infos")
_DICTS = {dict}


def read_reset(given: Any, *, is_by_agent: bool) -> tuple[Any, Any]:
    """Returns the observations and infos of a reset; the infos are {} if it returned none.

    Raises:
        SimulationError: the reset returned None, or observations that are no dict by agent.
    """
    if given is None:
        raise SimulationError(
            "the environment's reset() returned None; expected (observations, infos)"
        )
    is_pair = isinstance(given, tuple | list) and len(given) == 2 and _are_infos(given[1])
    seen, infos = (given[0], given[1] or {}) if is_pair else (given, {})
    if is_by_agent and not hasattr(seen, "items"):
        came = "observations as " if is_pair else ""
        raise SimulationError(
            f"the environment's reset() returned {came}a {type(seen).__name__}; expected "
            "(observations, infos), dicts by agent"
        )
    return seen, infos


def _are_infos(given: Any) -> bool:
    """Whether a value is infos: a dict, a sequence of dicts, or None; else it is an observation."""
    if isinstance(given, list | tuple):
        return all(isinstance(one, Mapping) for one in given)
    return given is None or isinstance(given, Mapping)


def read_step(given: Any, *, is_by_agent: bool) -> Five:
    """Returns the five parts of a step; infos that are None become {}.

    Raises:
        SimulationError: there are not five parts, or they are no dicts by agent.
    """
    num = len(given) if hasattr(given, "__len__") else None
    if num != 5:
        came = f"a {type(given).__name__}" if num is None else f"{num} values"
        why = "" if num != 4 else (
            "; with one dict of dones, as in the old gym, an episode that was cut off cannot be "
            "told from one that has ended, and learning needs to know"
        )  # fmt: skip
        raise SimulationError(
            f"the environment's step() returned {came}; expected five: {', '.join(_PARTS)}{why}"
        )
    parts: Any = given
    if not is_by_agent or set(map(type, parts)) == _DICTS:
        return parts
    if parts[4] is None:
        parts = (*parts[:4], {})
    for what, part in zip(_PARTS, parts, strict=True):
        if not hasattr(part, "items"):
            raise SimulationError(
                f"the environment's step() returned its {what} as a "
                f"{type(part).__name__}; expected a dict by agent"
            )
    return parts


def plain_reward(agent: Hashable, reward: Any) -> float:
    """Returns an agent's reward as a float; an array must have one element.

    Raises:
        SimulationError: the reward has several elements, or is no number.
    """
    try:
        if not isinstance(reward, str | bytes):  # a text is no number
            return float(reward.item() if isinstance(reward, np.ndarray) else reward)
        raise TypeError
    except (TypeError, ValueError):
        came = f"an array of the shape {shape}" if (shape := np.shape(reward)) else repr(reward)
        raise SimulationError(
            f"the reward of agent {agent!r} is {came}; it must be one number"
        ) from None


def wrong_actions(expected: Iterable[str], got: Iterable[str]) -> SimulationError:
    """Returns the error for actions that are not those of the acting agents."""
    expected, got = sorted(expected), sorted(got)
    if not expected:
        return SimulationError(
            f"step() got actions of {got}, but no agent is to act: the episode is over or was "
            "never started; call reset() first"
        )
    wrong = {
        "missing": [agent for agent in expected if agent not in got],
        "not to act now": [agent for agent in got if agent not in expected],
    }
    return SimulationError(
        f"step() expects actions of {expected}, the agents observed last, but got actions of "
        f"{got}: {', '.join(f'{what} {agents}' for what, agents in wrong.items() if agents)}"
    )
