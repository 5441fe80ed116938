"""One view of any simulation: PettingZoo, Gymnasium or RLlib's MultiAgentEnv.

    simulation = make_simulation("mpe2.simple_tag_v3:parallel_env", {"max_cycles": 50})
    simulation = adapt(simple_tag_v3.parallel_env(max_cycles=50))  # the same
    observations, infos = simulation.reset(seed=1)
    result = simulation.step({agent: ... for agent in observations})

Importing this package loads numpy and the standard library alone; Gymnasium, PettingZoo or
Ray come in with the environment that needs them.
"""

from muxrl.client.adapters.factory import Copy, adapt, make_simulation
from muxrl.client.adapters.first_look import look
from muxrl.client.adapters.simulation import Simulation, SimulationError, StepResult

__all__ = [
    "Copy",
    "Simulation",
    "SimulationError",
    "StepResult",
    "adapt",
    "look",
    "make_simulation",
]
