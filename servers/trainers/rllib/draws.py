"""Seeds the global random generators while RLlib draws from them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch


@contextlib.contextmanager
def torch_draws_by(seed: int, device: str) -> Iterator[None]:
    """Seeds PyTorch's generators, and restores them afterwards."""
    # `torch.manual_seed` would take 0.3 ms.
    generators = [torch.default_generator]
    if device == "cuda":
        generators.append(torch.cuda.default_generators[torch.cuda.current_device()])
    saved = [one.get_state() for one in generators]
    for one in generators:
        one.manual_seed(seed)
    try:
        yield
    finally:
        for one, state in zip(generators, saved, strict=True):
            one.set_state(state)


@contextlib.contextmanager
def all_draw_by(seed: int, device: str) -> Iterator[None]:
    """Seeds the generators of Python, numpy and PyTorch, and restores them afterwards."""
    saved = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        with torch_draws_by(seed, device):
            yield
    finally:
        random.setstate(saved[0])
        np.random.set_state(saved[1])
