"""The algorithms of sb3-contrib as trainers, as `stable_baselines3` does Stable-Baselines3's.

Not among them: ARS, which has no gradient; RecurrentPPO and MaskablePPO, for which muxrl's own PPO
has ``use_lstm`` and masks.
"""

from __future__ import annotations

from muxrl.servers.trainers.stable_baselines3 import OffPolicy, OnPolicy, ValueBased

try:
    import sb3_contrib
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"{error}; sb3-contrib comes with: pip install 'muxrl[sb3]'", name=error.name
    ) from error


class QRDQN(ValueBased):
    """DQN with quantiles of the return (Dabney et al. 2018)."""

    algorithm = sb3_contrib.QRDQN


class TQC(OffPolicy):
    """SAC with truncated quantiles (Kuznetsov et al. 2020)."""

    algorithm = sb3_contrib.TQC


class CrossQ(OffPolicy):
    """SAC with batch normalisation and no target networks (Bhatt et al. 2024)."""

    algorithm = sb3_contrib.CrossQ


class TRPO(OnPolicy):
    """Trust region policy optimisation (Schulman et al. 2015)."""

    algorithm = sb3_contrib.TRPO
