"""A2C on a server."""

from __future__ import annotations

from muxrl.servers.algorithms.a2c.a2c import A2CConfig
from muxrl.servers.algorithms.action_masks import MaskablePPOTorchRLModule
from muxrl.servers.algorithms.entry import AlgorithmEntry
from muxrl.servers.algorithms.networks import Networks
from muxrl.servers.algorithms.settings import TrainingSettings
from muxrl.servers.seating import Seating

# Of the ratio, the KL term and the epochs, which A2C has not.
_PPO_ONLY = frozenset(
    {
        "clip_param",
        "kl_coeff",
        "kl_target",
        "minibatch_size",
        "num_epochs",
        "shuffle_batch_per_epoch",
        "use_critic",
        "use_kl_loss",
        "vf_clip_param",
    }
)

A2C = AlgorithmEntry(
    name="A2C",
    summary="synchronous advantage actor-critic (Mnih et al. 2016)",
    learns_from="newest",
    training=TrainingSettings(A2CConfig, unused=_PPO_ONLY),
    networks=Networks(masked_module=MaskablePPOTorchRLModule),
    seating=Seating(follows_masks=True),
)
