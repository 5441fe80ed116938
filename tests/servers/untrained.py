"""Actions of an algorithm's untrained networks, through a server's own inference."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec

from muxrl.servers.agents.seats import SeatAction, SeatRequest, SoloSeat
from muxrl.servers.algorithms.registry import get_algorithm
from muxrl.servers.gymnasium_spaces import spaces_of
from muxrl.servers.rllib.inference import Inference


def act(
    name: str, who: SoloSeat, num: int, *, should_explore: bool = True, logged: Any = None
) -> list[SeatAction]:
    """Returns `num` actions for the same three numbers, which agent "a" observes.

    Args:
        name: of the algorithm.
        who: the agent's seat; its observation space is a Box of three numbers.
        num: of actions.
        should_explore: whether they are drawn.
        logged: the action, where it was chosen elsewhere.
    """
    entry = get_algorithm(name)
    config = entry.make_config({}, {})
    spec = config.get_default_rl_module_spec()
    spec.observation_space, spec.action_space = spaces_of(who)
    spec.inference_only = True
    spec.model_config = config.model_config
    served = Inference(MultiRLModuleSpec(rl_module_specs={"p": spec}).build, seed=0)
    served.needs_log_probabilities = entry.needs_log_probabilities
    observation = np.array([0.1, -0.4, 0.9], np.float32)
    requests = [SeatRequest(who, observation, None, logged) for _ in range(num)]
    step = SimpleNamespace(
        requests=requests, should_explore=should_explore, is_training=True, untrained=frozenset()
    )
    (chosen,), _ = served.act([step])  # type: ignore[list-item]
    return chosen
