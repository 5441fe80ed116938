"""MAPPO on a server."""

from __future__ import annotations

from muxrl.servers.algorithms.agent_spaces import AgentSpaces
from muxrl.servers.algorithms.entry import AlgorithmEntry
from muxrl.servers.algorithms.mappo.mappo import MAPPOConfig
from muxrl.servers.algorithms.mappo.seats import CentralSeating
from muxrl.servers.algorithms.networks import Networks
from muxrl.servers.algorithms.settings import TrainingSettings

MAPPO = AlgorithmEntry(
    name="MAPPO",
    summary="PPO whose critic sees the global state (Yu et al. 2022)",
    learns_from="newest",
    training=TrainingSettings(
        MAPPOConfig, unused=frozenset({"kl_coeff", "kl_target", "use_critic", "use_kl_loss"})
    ),
    networks=Networks(
        refused={
            "use_lstm": "its critic would need the history of the state, which is not recorded; "
            "use QMIX (agent: gru) or PPO",
            "vf_share_layers": "its actor and its critic do not see the same",
        },
        own_module_refused="its critic sees the state, apart from what its actor sees",
    ),
    seating=CentralSeating(),
    space_check=AgentSpaces(reads_images=False),
)
