"""Reads the global state from an environment's method `state()`, as a flat array."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muxrl.client.adapters.simulation import SimulationError
from muxrl.protocol.user_errors import one_line


def find_state_size(env: Any, reset: Callable[[], Any]) -> tuple[int | None, str]:
    """Returns the length of the flattened `env.state()`, None without one; and why it failed.

    An environment that does not declare a `state_space` is reset once to look at its state.
    """
    state = getattr(env, "state", None)
    method = getattr(type(getattr(env, "unwrapped", env)), "state", None)
    # PettingZoo's base classes have a state() that only raises.
    is_stub = getattr(method, "__qualname__", "") in {"ParallelEnv.state", "AECEnv.state"}
    if not callable(state) or is_stub:
        return None, ""
    shape = getattr(getattr(env, "state_space", None), "shape", None)
    if shape is not None:
        return math.prod(shape), ""
    reset()
    try:
        return read_state(env).size, ""
    except NotImplementedError:  # another stub, or a wrapper's stub
        return None, ""
    except (Exception, SystemExit) as error:  # noqa: BLE001  # maybe no server reads it
        return None, raised_by("state()", error)


def read_state(env: Any, size: int | None = None) -> NDArray[np.float32]:
    """Returns the state, float32 ``[size]``.

    Raises:
        SimulationError: the state is no array, or has another length than the environment
            declared.
    """
    given = env.state()
    try:
        state = np.array(given, dtype=np.float32).reshape(-1)
    except (TypeError, ValueError, RuntimeError):  # a dict, ragged, or a tensor on a GPU
        raise SimulationError(
            f"the environment's state() returned a {type(given).__name__}, which is not an "
            f"array of numbers: {given!r:.80}"
        ) from None
    if size is not None and state.size != size:
        raise SimulationError(
            f"the environment's state() returned {state.size} numbers, but {size} were "
            "declared; make state_space and state() agree"
        )
    return state


def raised_by(where: str, error: BaseException) -> str:
    """Returns one line on the exception that one of the environment's methods raised."""
    return str(error) if isinstance(error, SimulationError) else f"{where} raised {one_line(error)}"
