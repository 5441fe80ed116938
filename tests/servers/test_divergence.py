"""A learner that has diverged ends training with an error, instead of acting with NaN weights."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import requests

from muxrl.client.env_loop import EnvLoop
from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig
from muxrl.orchestrator.launch.in_process import serve
from muxrl.servers.checkpoints.checkpoint import ABOUT_FILE
from muxrl.servers.config import ServerConfig
from muxrl.servers.training.policies import ServerProblem


def wild(algorithm: str, lr: float) -> ExperimentConfig:
    return ExperimentConfig(
        "diverges",
        simulation=SimulationConfig(
            "muxrl.experiments.simulations.zero_cost:ZeroCost", {"num_agents": 1, "num_steps": 50}
        ),
        servers={
            "wild": ServerConfig(
                algorithm,
                ["*"],
                settings={
                    "train_batch_size_per_learner": 50,
                    "min_sample_timesteps_per_iteration": 1,
                    "lr": lr,
                }
                | ({"minibatch_size": 25, "num_epochs": 1} if algorithm == "PPO" else {}),
                model={"fcnet_hiddens": [8]},
            )
        },
    )


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's warning about NaN weights
@pytest.mark.parametrize("algorithm", ["PPO", "A2C"])
def test_a_learner_that_diverges_ends_training_with_a_clear_error(
    algorithm: str, tmp_path: Path
) -> None:
    with serve(wild(algorithm, lr=1e38)) as served, served.client() as client:
        server = served.servers["wild"]
        loop = EnvLoop([served.simulation()], client, seeds=iter(range(10**6)))
        loop.run(should_stop=lambda: bool(server.status().problem) or loop.num_env_steps > 1_000)
        status = server.status()
    assert status.phase == "training_failed"
    assert "more than 10 updates of policy 'default' in a row were skipped" in status.problem
    assert "its learner has diverged" in status.problem
    assert "try a lower lr, or clip gradients (grad_clip)" in status.problem
    with pytest.raises(ServerProblem, match="of server 'wild' is not finite any more"):
        server.policies.save(tmp_path / "wild")
    assert not (tmp_path / "wild").exists()


def test_a_learner_that_has_failed_can_be_saved_unless_its_optimizer_is_not_finite(
    tmp_path: Path,
) -> None:
    with serve(wild("PPO", lr=1e-3)) as served, served.client() as client:
        server = served.servers["wild"]
        policies: Any = server.policies
        learning, learner = policies._learning, policies.acting.learners["default"]
        train = learning.train

        def fails_later() -> dict[str, Any]:
            if policies.iteration == 3:
                raise ZeroDivisionError
            return train()

        learning.train = fails_later
        loop = EnvLoop([served.simulation()], client, seeds=iter(range(10**6)))
        loop.run(should_stop=lambda: bool(server.status().problem) or loop.num_env_steps > 1_000)
        assert "training failed: ZeroDivisionError" in server.status().problem
        server.policies.save(tmp_path / "failed")
        about = json.loads((tmp_path / "failed" / ABOUT_FILE).read_text())
        assert about["iteration"] == 3
        moments = next(iter(learner.steps[""].optimizer.state.values()))["exp_avg_sq"]
        moments.fill_(math.inf)
        with pytest.raises(ServerProblem, match=r"\[0\]\['exp_avg_sq'\]"):
            server.policies.save(tmp_path / "infinite")
        assert "exp_avg_sq" in server.status().checkpoint_problem
        for name, number in (("checkpoint_refused", 1), ("checkpoints_refused_total", 1)):
            assert f'muxrl_{name}{{server="wild"}} {number}.0' in measured(server.address)
        moments.fill_(0.0)
        server.policies.save(tmp_path / "mended")
        for name, number in (("checkpoint_refused", 0), ("checkpoints_refused_total", 1)):
            assert f'muxrl_{name}{{server="wild"}} {number}.0' in measured(server.address)


def measured(address: str) -> list[str]:
    return requests.get(f"http://{address}/metrics").text.splitlines()
