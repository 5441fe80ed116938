"""A learner that has diverged says so, instead of acting on with weights that are NaN."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.rllib.utils.metrics import LEARNER_RESULTS
from tests.servers.scripted_store import make_plan

from muxrl.client.env_loop import EnvLoop
from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig
from muxrl.orchestrator.runs.in_process import serve
from muxrl.servers.checkpoint import ABOUT_FILE
from muxrl.servers.config import ServerConfig
from muxrl.servers.episodes.store import EpisodeCounts
from muxrl.servers.feed import Feed, FeedClosed
from muxrl.servers.policies import ServerProblem
from muxrl.servers.trainer import Trainer


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


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of weights that are NaN
@pytest.mark.parametrize("algorithm", ["PPO", "A2C"])
def test_a_learner_that_diverges_ends_with_a_sentence(
    rllib: None, algorithm: str, tmp_path: Path
) -> None:
    with serve(wild(algorithm, lr=1e38)) as served, served.client() as client:
        server = served.servers["wild"]
        loop = EnvLoop([served.simulation()], client, seeds=iter(range(10**6)))
        loop.run(should_stop=lambda: bool(server.status().problem) or loop.num_env_steps > 1_000)
        status = server.status()
    assert status.phase == "training_failed"
    assert "the loss of policy 'default' was nan in iteration" in status.problem
    assert "not finite in 3 iterations in a row" in status.problem
    assert "try a lower lr, or clip gradients (grad_clip)" in status.problem
    with pytest.raises(ServerProblem, match="of server 'wild' is not finite any more"):
        server.policies.save(tmp_path / "wild")
    assert not (tmp_path / "wild").exists()


def test_a_learner_that_has_failed_can_be_saved_unless_its_optimizer_is_not_finite(
    rllib: None, tmp_path: Path
) -> None:
    with serve(wild("PPO", lr=1e-3)) as served, served.client() as client:
        server = served.servers["wild"]
        trainer = server.policies.trainer  # type: ignore[attr-defined]
        train, learner = trainer.algo.train, trainer.algo.learner_group._learner

        def fails_later() -> dict[str, Any]:
            if trainer.iteration == 3:
                raise ZeroDivisionError
            return train()

        trainer.algo.train = fails_later
        loop = EnvLoop([served.simulation()], client, seeds=iter(range(10**6)))
        loop.run(should_stop=lambda: bool(server.status().problem) or loop.num_env_steps > 1_000)
        assert "training failed: ZeroDivisionError" in server.status().problem
        server.policies.save(tmp_path / "failed")
        about = json.loads((tmp_path / "failed" / ABOUT_FILE).read_text())
        assert about["iteration"] == 3
        (optimizer,) = learner._named_optimizers.values()
        next(iter(optimizer.state.values()))["exp_avg_sq"].fill_(math.inf)
        with pytest.raises(ServerProblem, match="exp_avg_sq of parameter 0 in optimizer 'default"):
            server.policies.save(tmp_path / "infinite")


@pytest.mark.parametrize(
    ("losses", "is_updated", "fails_in"),
    [
        ([math.nan, math.inf, math.nan, 1.0], True, 3),
        ([math.nan, math.nan, 1.0, math.nan, math.nan, 1.0], True, None),
        ([1.0, None, None, None, None], True, None),  # nothing was learned, none is known
        ([math.nan] * 5, False, None),  # a replay that is not full enough
    ],
)
def test_only_updates_in_a_row_count(
    losses: list[float | None], is_updated: bool, fails_in: int | None
) -> None:
    inference = SimpleNamespace(weights_seq_no=0)
    left = iter(losses)
    problems: list[str] = []

    def train() -> dict[str, Any]:
        try:
            loss = next(left)
        except StopIteration:
            raise FeedClosed from None
        inference.weights_seq_no += is_updated
        return {LEARNER_RESULTS: {"default": {} if loss is None else {"total_loss": loss}}}

    runner = SimpleNamespace(inference=inference, policy_lag=SimpleNamespace(mean=0.0, max=0))

    class Scripted(Trainer):
        @property
        def env_runner(self) -> Any:
            return runner

    trainer = Scripted(
        SimpleNamespace(train=train),  # type: ignore[arg-type]
        make_plan(),
        Feed(max_ahead=0),
        EpisodeCounts(),
        max_iterations=None,
        on_failure=problems.append,
    )
    trainer.start()
    assert trainer.stop(5.0)
    if fails_in is None:
        assert not problems
    else:
        assert trainer.iteration == fails_in
        assert f"was nan in iteration {fails_in}" in problems[0]
