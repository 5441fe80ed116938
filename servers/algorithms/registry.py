"""The algorithms a policy server can train, by name.

A new algorithm is one more `AlgorithmEntry` in `ALGORITHMS`; what an entry says is in `entry`.
"""

from __future__ import annotations

import difflib

from ray.rllib.algorithms.ppo.ppo import PPOConfig

from servers.algorithms.a2c import A2CConfig
from servers.algorithms.entry import AlgorithmEntry
from servers.algorithms.qmix.config import QMIXConfig
from servers.algorithms.settings import AlgorithmProblem

__all__ = ["ALGORITHMS", "AlgorithmEntry", "AlgorithmProblem", "get_algorithm"]

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
_NOT_QMIX = frozenset(
    {
        "count_steps_by",
        "grad_clip_by",
        "minibatch_size",
        "num_epochs",
        "rollout_fragment_length",
        "shuffle_batch_per_epoch",
        "train_batch_size",
        "train_batch_size_per_learner",
    }
)


def _team_entry(name: str, mixer: str | None, summary: str) -> AlgorithmEntry:
    return AlgorithmEntry(
        name=name,
        config_class=QMIXConfig,
        learns_from="replay",
        needs_teams=True,
        samples_actions=False,
        summary=summary,
        preset={} if mixer is None else {"mixer": mixer},
        not_settings=_NOT_QMIX,
    )


ALGORITHMS: tuple[AlgorithmEntry, ...] = (
    AlgorithmEntry(
        name="PPO",
        config_class=PPOConfig,
        learns_from="newest",
        summary="proximal policy optimisation, RLlib's (Schulman et al. 2017)",
    ),
    AlgorithmEntry(
        name="A2C",
        config_class=A2CConfig,
        learns_from="newest",
        summary="synchronous advantage actor-critic (Mnih et al. 2016)",
        not_settings=_PPO_ONLY,
    ),
    _team_entry("QMIX", None, "monotonic value mixing for teams (Rashid et al. 2018)"),
    _team_entry("VDN", "vdn", "sum of values for teams (Sunehag et al. 2017)"),
    _team_entry("IQL", "none", "independent Q-learning on the team's reward (Tan 1993)"),
)


def get_algorithm(name: str) -> AlgorithmEntry:
    """The entry of that name, in upper or lower case.

    Raises:
        AlgorithmProblem: no such algorithm; the message suggests one.
    """
    for entry in ALGORITHMS:
        if entry.name.lower() == name.lower():
            return entry
    known = [entry.name for entry in ALGORITHMS]
    close = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.5)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    raise AlgorithmProblem(f"unknown algorithm {name!r}{hint}; known: {', '.join(known)}")
