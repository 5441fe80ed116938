"""DQN and SAC make as many updates for many simulations as for one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.servers.resumable import plan_of

from muxrl.protocol.messages import StartEpisode, Step
from muxrl.servers.server import make_policies


@pytest.mark.parametrize("algorithm", ["DQN", "SAC"])
@pytest.mark.parametrize("num", [1, 6])
def test_updates_go_by_env_steps(algorithm: str, num: int) -> None:
    policies: Any = make_policies(plan_of(algorithm), pytest.fail)
    algo, store = policies.algo, policies.store
    first, fragment = algo._learns_from_env_step, algo.config.get_rollout_fragment_length()
    rng, sizes, played, t = np.random.default_rng(0), [], 0, 0
    names = [f"episode-{i}" for i in range(num)]
    for name in names:
        store.accept(StartEpisode(name), 0.0)
    while played < first + 24:
        pending = [
            store.accept(
                Step(name, t, {"a": rng.random(2, np.float32)}, {"a": 1.0} if t else {}), 0.0
            )
            for name in names
        ]
        (chosen, version) = policies.acting.act(pending)
        for step, own in zip(pending, chosen, strict=True):
            step.finish(own, version)
        store.finish_frame()
        t, played = t + 1, played + num * bool(t)
        while policies.feed.unlearned:
            before = algo.num_env_steps
            algo.training_step()
            sizes.append(algo.num_env_steps - before)
    assert set(sizes) == {max(fragment, num)}
    num_late = sum(size for i, size in enumerate(sizes) if sum(sizes[: i + 1]) >= first)
    assert algo.learner._weights_seq_no == int(num_late * algo._updates_per_step + 1e-6)
