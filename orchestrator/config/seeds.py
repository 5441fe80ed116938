"""Seeds for the parts of an experiment, made from the experiment's own."""

from __future__ import annotations

import numpy as np


def derive_seed(seed: int, *names: str) -> int:
    """Returns a seed below 2**31 for a part of an experiment, the same on every machine.

    Args:
        seed: the experiment's.
        names: what the seed is for, such as ``"server", "qmix"``.
    """
    words = [seed, *(byte for name in names for byte in (*name.encode(), 0))]
    return int(np.random.SeedSequence(words).generate_state(1)[0]) & 0x7FFF_FFFF
