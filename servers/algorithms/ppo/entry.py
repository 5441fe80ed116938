"""PPO on a server."""

from __future__ import annotations

from muxrl.servers.algorithms.action_masks import MaskablePPOTorchRLModule
from muxrl.servers.algorithms.entry import AlgorithmEntry
from muxrl.servers.algorithms.networks import Networks
from muxrl.servers.algorithms.ppo.ppo import PPOConfig
from muxrl.servers.algorithms.settings import TrainingSettings
from muxrl.servers.seating import Seating

PPO = AlgorithmEntry(
    name="PPO",
    summary="proximal policy optimisation, RLlib's (Schulman et al. 2017)",
    learns_from="newest",
    training=TrainingSettings(PPOConfig),
    networks=Networks(masked_module=MaskablePPOTorchRLModule),
    seating=Seating(follows_masks=True),
)
