"""`muxrl.load_policy` loads all policies of a run, and says why not if it cannot load one."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.servers.export.untrained import plan_of, save
from tests.servers.fixed_policies.test_fixed_policies import make
from tests.servers.trainers.test_policies import HERE, policies_of

from muxrl import load_policy
from muxrl.protocol.spaces import Box, Discrete
from muxrl.servers.config import ServerPlan
from muxrl.servers.setting_values import AlgorithmProblem

SEES, ACTS = Box((2,)), Discrete(3)
CONSTANT = "tests.servers.fixed_policies.test_fixed_policies:make_constant"


def one(algorithm: str, agent: str, **settings: Any) -> ServerPlan:
    """Returns the plan of a server for one agent."""
    plan = plan_of(algorithm, SEES, ACTS, settings=settings)
    if algorithm != "PPO":
        plan = dataclasses.replace(plan, model={})
    return dataclasses.replace(plan, server_id=f"of_{agent}", agents={agent: plan.agents["a"]})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Gives a run's directory with servers of all kinds."""
    place = tmp_path / "checkpoints" / "last"
    elsewhere = save(one("PPO", "x"), tmp_path / "elsewhere")
    save(one("PPO", "learner"), place / "of_learner")
    script = {"policy": CONSTANT, "kwargs": {"action": 1}}
    members = {"now": {"live": "of_learner"}, "chance": {"algorithm": "RANDOM"}}
    for plan in (
        one("RANDOM", "chance"),
        one("POOL", "pool", members=members),
        one("SCRIPTED", "script", **script),
        one("FROZEN", "frozen", checkpoint=str(elsewhere), policies={"both": "both"}),
    ):
        make(plan).save(place / plan.server_id)
    return tmp_path


def test_policies_with_a_network_are_loaded_from_a_run_with_all_kinds_of_servers(run: Path) -> None:
    policies = load_policy(run)
    assert sorted(policies) == ["frozen", "learner"]
    seen = np.array([0.5, -0.5], np.float32)
    expected = load_policy(run / "elsewhere")["x"]
    np.testing.assert_array_equal(
        policies["frozen"].probabilities(seen),  # type: ignore[union-attr]
        expected.probabilities(seen),  # type: ignore[union-attr]
    )
    assert policies["frozen"].value(seen) == expected.value(seen)  # type: ignore[union-attr]
    assert sorted(policies.left_out) == ["chance", "pool", "script"]
    with pytest.raises(
        KeyError, match="'pool' has no policy here: server 'of_pool' is POOL, whose policies"
    ):
        policies["pool"]
    with pytest.raises(KeyError, match="'nobody' has no policy here: only frozen"):
        policies["nobody"]
    assert policies.get("pool") is None


def test_a_frozen_server_whose_checkpoint_is_gone_is_left_out(run: Path) -> None:
    (run / "elsewhere").rename(run / "moved")
    policies = load_policy(run)
    assert list(policies) == ["learner"]
    assert "there is no checkpoint at" in policies.left_out["frozen"]


def test_a_run_without_any_policy_is_refused(run: Path, tmp_path: Path) -> None:
    place = run / "checkpoints" / "last"
    with pytest.raises(AlgorithmProblem, match="no policy to load: server 'of_chance' is RANDOM"):
        load_policy(place / "of_chance")
    for server_id in ("of_learner", "of_frozen"):
        (place / server_id).rename(tmp_path / server_id)
    with pytest.raises(
        AlgorithmProblem, match=r"'of_chance' is RANDOM.*; server 'of_pool' is POOL"
    ):
        load_policy(run)


def test_a_team_of_a_trainer_of_one_s_own_is_left_out(run: Path) -> None:
    team = plan_of(f"{HERE}:OfTeams", SEES, ACTS, model={}, is_team=True)
    policies_of(team).save(run / "checkpoints" / "last" / "team")
    policies = load_policy(run)
    assert sorted(policies) == ["frozen", "learner"]
    assert "acts for a whole team at once" in policies.left_out["a"]


def test_a_damaged_policy_is_an_error(run: Path) -> None:
    note = run / "checkpoints" / "last" / "of_learner" / "muxrl.json"
    note.write_text("{")
    with pytest.raises(AlgorithmProblem, match="is not JSON"):
        load_policy(run)


def growing(number: int) -> Any:
    """Returns a function that sets all weights to those of the n-th of several snapshots."""
    return lambda p: torch.full_like(p, 0.1 * number) * torch.arange(p.numel()).view(p.shape)


def test_a_mean_draws_a_snapshot_for_each_episode(tmp_path: Path) -> None:
    for number, env_steps in enumerate(("5", "20", "100"), 1):
        for agent in ("x", "y"):
            place = tmp_path / "checkpoints" / env_steps / f"of_{agent}"
            save(one("PPO", agent), place, growing(number))
    (tmp_path / "checkpoints" / "last").symlink_to("100")
    seen = np.array([0.5, -0.5], np.float32)
    single = [load_policy(tmp_path / "checkpoints" / n)["x"] for n in ("5", "20", "100")]
    expected = [tuple(policy.probabilities(seen)) for policy in single]  # type: ignore[union-attr]
    mean: Any = load_policy(tmp_path, mean_of="all")
    assert sorted(mean) == ["x", "y"]
    drawn = []
    for _ in range(300):
        mean["x"].reset()
        drawn.append(expected.index(tuple(mean["x"].probabilities(seen))))
        assert mean["x"](seen) == single[drawn[-1]](seen)
        assert mean["x"].value(seen) == single[drawn[-1]].value(seen)  # type: ignore[union-attr]
    assert all(70 < drawn.count(number) < 130 for number in range(3))

    def draws(agent: str, **how: Any) -> list[int]:
        policy: Any = load_policy(tmp_path, mean_of="all", **how)[agent]
        return [(policy.reset(), policy.members.index(policy.drawn))[1] for _ in range(300)]

    assert draws("x") == drawn
    assert draws("x", seed=1) != drawn
    assert draws("y") != drawn  # of another server
    newest: Any = load_policy(tmp_path, mean_of=2)["x"]
    assert [tuple(member.probabilities(seen)) for member in newest.members] == expected[1:]


def test_agents_of_one_server_draw_snapshots_of_one_moment(tmp_path: Path) -> None:
    for env_steps in (10, 20, 30):
        save(plan_of("PPO", SEES, ACTS), tmp_path / str(env_steps))
    policies: Any = load_policy(tmp_path, mean_of="all")
    moments = set()
    for _ in range(50):
        for policy in policies.values():
            policy.reset()
        places = {policy.members.index(policy.drawn) for policy in policies.values()}
        assert len(places) == 1
        moments |= places
    assert moments == {0, 1, 2}


def test_a_mean_of_no_snapshots_is_refused(run: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no snapshot; checkpoint\.keep_every_env"):
        load_policy(run, mean_of="all")
    for wrong in (0, "some", 2.5):
        with pytest.raises(ValueError, match=f"mean_of is {wrong!r}; expected at least 1 snapshot"):
            load_policy(run, mean_of=wrong)  # type: ignore[arg-type]
