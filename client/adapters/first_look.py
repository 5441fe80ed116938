"""A look at a simulation before anything is started: a reset and one step of random actions.

What is wrong with these is wrong in every process that would be started, again and again.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np

from muxrl.client.adapters.adapted_env import told
from muxrl.client.adapters.simulation import Simulation, SimulationError
from muxrl.protocol.values import Mismatch, conform, sample_action

logger = logging.getLogger(__name__)

_SLOW_S = 10.0

T = TypeVar("T")


def look(simulation: Simulation, options: Mapping[str, float] | None = None) -> list[str]:
    """Resets a simulation, plays one step, judges what it says as a server would, and closes it.

    Args:
        simulation: to be looked at.
        options: for its reset.

    Returns:
        What is not as it should be, and was taken all the same: a sentence each.

    Raises:
        SimulationError: it raised or called `sys.exit`, an observation does not fit its space, or a
            reward is no finite number.
    """
    try:
        _play(simulation, options)
    finally:
        with _waiting_for("close"):
            simulation.close()
    return list(getattr(simulation, "notes", ()))


def _play(simulation: Simulation, options: Mapping[str, float] | None) -> None:
    reset = partial(simulation.reset, options=options) if options else simulation.reset
    observations, _ = _call("reset", reset, 0)
    observed = _judge(simulation, observations, "reset()")
    actions = _draw_actions(simulation, observed, "reset()")
    _call("state", lambda _: simulation.state(), None)
    result = _call("step", simulation.step, actions)
    _draw_actions(simulation, _judge(simulation, result.observations, "step()"), "step()")
    _judge(simulation, result.final_observations, "step()")
    for agent, reward in result.rewards.items():
        if not math.isfinite(reward):
            raise SimulationError(f"step() gave agent {agent!r} the reward {reward}")


@contextlib.contextmanager
def _waiting_for(verb: str) -> Iterator[None]:
    """Says what takes long: nothing else is printed yet."""
    story = f"the environment's {verb}() has taken {_SLOW_S:g} s so far; what does it wait for?"
    timer = threading.Timer(_SLOW_S, logger.warning, (story,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _draw_actions(simulation: Simulation, observed: Mapping[str, Any], where: str) -> Any:
    rng = np.random.default_rng(0)
    try:
        return {
            agent: sample_action(simulation.action_spaces[agent], seen, rng)
            for agent, seen in observed.items()
        }
    except ValueError as error:
        raise SimulationError(f"after {where}, {error}") from None


def _call(verb: str, call: Callable[[Any], T], argument: Any) -> T:
    try:
        with _waiting_for(verb):
            return call(argument)
    except SimulationError:
        raise
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise SimulationError(f"{verb}() raised {told(error)}") from error


def _judge(simulation: Simulation, observations: Mapping[str, Any], where: str) -> dict[str, Any]:
    judged = {}
    for agent, seen in observations.items():
        try:
            judged[agent] = conform(simulation.observation_spaces[agent], seen)
        except Mismatch as mismatch:
            raise SimulationError(
                f"{where} gave agent {agent!r} an observation that is not in its space: {mismatch}"
            ) from None
    return judged
