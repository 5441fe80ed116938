"""Behaviour cloning makes the actions of a record the policy with which a server begins."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from tests.servers.export.untrained import plan_of, save

from muxrl.client.adapters import make_simulation
from muxrl.experiments.examples.clone import clone
from muxrl.orchestrator.load_policy import load_policy
from muxrl.orchestrator.records.played import keep_share


def test_a_policy_learns_the_actions_of_a_record(tmp_path: Path) -> None:
    made = make_simulation("open_spiel:kuhn_poker", {})
    spaces = made.observation_spaces["player_0"], made.action_spaces["player_0"]
    plan = plan_of("PPO", *spaces)
    agents = {f"player_{i}": agent for i, agent in enumerate(plan.agents.values())}
    plan = dataclasses.replace(plan, agents=agents)
    torch.manual_seed(0)
    before = save(plan, tmp_path / "before", lambda weights: 0.5 * torch.randn_like(weights))
    simulation = keep_share(made, tmp_path / "episodes", 1.0)
    seen = []
    for seed in range(60):
        observations, _ = simulation.reset(seed)
        while observations:
            (agent, own), = observations.items()  # fmt: skip
            has_king = bool(own["observation"][4])
            seen.append((own, has_king))
            observations = simulation.step({agent: int(has_king)}).observations
    clone([*(tmp_path / "episodes").iterdir()], before, tmp_path / "after", epochs=200)
    policy = load_policy(tmp_path / "after")["player_1"]
    assert all((policy.probabilities(own)[1] > 0.8) == bets for own, bets in seen)
