"""HAPPO learns through a server: a team of unlike members, each with a network of its own."""

from __future__ import annotations

import pytest

from muxrl.experiments.simulations.unlike_cues import oracle_return, random_return
from muxrl.experiments.studies.case_table import Case, evaluated

pytestmark = [pytest.mark.learning, pytest.mark.timeout(240)]

TEAM = Case(
    "unlike_cues",
    (
        "simulation.num_envs_per_process=4",
        "servers.team.algorithm=HAPPO",
        "servers.team.agents=['*']",
        "servers.team.groups={team: ['*']}",
        "servers.team.team_reward=mean",  # all are paid for the same event
        "servers.team.settings={train_batch_size_per_learner: 500, lr: 0.003, gamma: 0.9}",
    ),
    env_steps=7_500,
    every=500,
    measure=evaluated(50, should_explore=True),
)


def test_members_with_2_3_and_5_actions_learn_to_answer_together() -> None:
    measured = TEAM.train_until(
        0, TEAM.env_steps, lambda figures: figures["return"] > 0.92 * oracle_return()
    )
    first, *_, before_last, last = [figures["return"] for figures in measured.values()]
    assert first < 3 * random_return()
    assert min(before_last, last) > 0.9 * oracle_return()
