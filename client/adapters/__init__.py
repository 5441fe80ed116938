"""One view of any simulation: PettingZoo, Gymnasium or RLlib's MultiAgentEnv.

    simulation = make_simulation("mpe2.simple_tag_v3:parallel_env", {"max_cycles": 50})
    simulation = adapt(simple_tag_v3.parallel_env(max_cycles=50))  # the same
    observations, infos = simulation.reset(seed=1)
    result = simulation.step({agent: ... for agent in observations})

Importing this package loads only numpy and the standard library; Gymnasium, PettingZoo or Ray are
loaded by an environment that needs them.
"""

from muxrl.client.adapters.factory import (
    Copy,
    adapt,
    adapt_vector,
    make_simulation,
    make_vector_simulation,
)
from muxrl.client.adapters.sides import with_sides
from muxrl.client.adapters.simulation import Simulation, SimulationError, StepResult
from muxrl.client.adapters.vector_simulation import OnlyCopy, VectorSimulation, VectorStep

__all__ = [
    "Copy",
    "OnlyCopy",
    "Simulation",
    "SimulationError",
    "StepResult",
    "VectorSimulation",
    "VectorStep",
    "adapt",
    "adapt_vector",
    "make_simulation",
    "make_vector_simulation",
    "with_sides",
]
