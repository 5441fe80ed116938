"""PPO learns poker."""

from __future__ import annotations

import pytest

from muxrl.experiments.studies.poker.cases import TABLE


@pytest.mark.learning
@pytest.mark.timeout(240)
def test_ppo_becomes_less_exploitable_in_kuhn_poker(rllib: None) -> None:
    final = TABLE.run("Kuhn: PPO against PPO", env_steps=10_000).final
    assert final["newest"] > -0.38  # uniform actions: -0.458
