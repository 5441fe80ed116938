"""Derives seeds for the parts of an experiment from the experiment's seed."""

from __future__ import annotations

import numpy as np

from muxrl.orchestrator.config.schema import ExperimentConfig

_FIRST, _STRIDE = 10_000, 1_000_000
"""Seed of the first evaluation episode in a run of seed 0, and how much it grows with each seed."""
_SEEDS = 2**31


def derive_seed(seed: int, *names: str) -> int:
    """Returns a seed below 2**31 for a part of an experiment, the same on every machine.

    Args:
        seed: of the experiment.
        names: the part that the seed is for, such as ``"server", "qmix"``.
    """
    words = [seed, *(byte for name in names for byte in (*name.encode(), 0))]
    return int(np.random.SeedSequence(words).generate_state(1)[0]) & 0x7FFF_FFFF


def evaluation_seed(config: ExperimentConfig) -> int:
    """Returns the seed of the first episode of every evaluation of a run."""
    given = config.evaluation.seed
    return (_FIRST + _STRIDE * config.seed) % _SEEDS if given is None else given
