"""A learner that has diverged says so, instead of acting on with weights that are NaN."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from ray.rllib.utils.metrics import LEARNER_RESULTS
from tests.servers.scripted_store import make_plan

from muxrl.client.env_loop import EnvLoop
from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig
from muxrl.orchestrator.runs.in_process import serve
from muxrl.servers.config import ServerConfig
from muxrl.servers.episodes.store import EpisodeCounts
from muxrl.servers.feed import Feed, FeedClosed
from muxrl.servers.trainer import Trainer


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of weights that are NaN
@pytest.mark.parametrize("algorithm", ["PPO", "A2C"])
def test_a_learner_that_diverges_ends_with_a_sentence(rllib: None, algorithm: str) -> None:
    config = ExperimentConfig(
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
                    "lr": 1e38,
                }
                | ({"minibatch_size": 25, "num_epochs": 1} if algorithm == "PPO" else {}),
                model={"fcnet_hiddens": [8]},
            )
        },
    )
    with serve(config) as served, served.client() as client:
        server = served.servers["wild"]
        loop = EnvLoop([served.simulation()], client, seeds=iter(range(10**6)))
        loop.run(should_stop=lambda: bool(server.status().problem) or loop.num_env_steps > 1_000)
        status = server.status()
    assert status.phase == "training_failed"
    assert "the loss of policy 'default' was nan in iteration" in status.problem
    assert "not finite in 3 iterations in a row" in status.problem
    assert "try a lower lr, or clip gradients (grad_clip)" in status.problem


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
