"""A run ends at the first condition that holds, and the time that is left can be estimated."""

from typing import Any

import pytest

from muxrl.orchestrator.config import StopConfig
from muxrl.orchestrator.launch.stop_conditions import StopConditions
from muxrl.orchestrator.launch.tally import Tally
from muxrl.orchestrator.supervise.simulation_process import SimulationReport
from muxrl.protocol.messages import Status


def tally(env_steps: int = 0, time_s: float = 0.0) -> Tally:
    made = Tally()
    made.add("simulation-0", SimulationReport(env_steps, [{"a": 1.0}, {"a": 3.0}]))
    made.time_s = time_s
    return made


def status(
    iteration: int = 0,
    episodes: int = 0,
    mean: float | None = None,
    num_returns: int | None = None,
) -> Status:
    return Status(
        "s",
        "ready",
        iteration=iteration,
        num_episodes=episodes,
        episode_return_mean=mean,
        num_returns=num_returns,
    )


def test_stop_iterations_ignores_servers_that_do_not_learn():
    conditions = StopConditions(StopConfig(iterations=3), fixed=["random"])
    statuses = {"a": status(2), "random": status(0)}
    assert not conditions.reached(tally(), statuses)
    assert conditions.time_left_s(tally(time_s=10.0), statuses) == pytest.approx(5.0)
    assert conditions.reached(tally(), {**statuses, "a": status(3)})
    assert not conditions.reached(tally(), {"random": status(0)})


@pytest.mark.parametrize(
    ("config", "steps", "time_s", "statuses", "is_over"),
    [
        (StopConfig(), 10**9, 10.0**9, {}, False),
        (StopConfig(env_steps=100), 99, 0.0, {}, False),
        (StopConfig(env_steps=100), 100, 0.0, {}, True),
        (StopConfig(env_steps=100, time_s=5.0), 1, 5.0, {}, True),
        (StopConfig(iterations=3), 0, 0.0, {}, False),
        (StopConfig(iterations=3), 0, 0.0, {"a": status(3), "b": status(2)}, False),
        (StopConfig(iterations=3), 0, 0.0, {"a": status(3), "b": status(4)}, True),
        (StopConfig(episode_return={"a": 1.0}), 0, 0.0, {"a": status(0, 100, 0.9)}, False),
        (StopConfig(episode_return={"a": 1.0}), 0, 0.0, {"a": status(0, 3, 5.0)}, False),
        (StopConfig(episode_return={"a": 1.0}), 0, 0.0, {"a": status(0, 100, 1.0)}, True),
        (StopConfig(episode_return={"a": 1.0}), 0, 0.0, {"b": status(0, 100, 1.0)}, False),
        (StopConfig(episode_return={"a": 1.0}), 0, 0.0, {"a": status(0, 100, 5.0, 19)}, False),
        (StopConfig(episode_return={"a": 1.0}), 0, 0.0, {"a": status(0, 100, 1.0, 20)}, True),
    ],
)
def test_a_run_ends_once_a_condition_holds(
    config: StopConfig, steps: int, time_s: float, statuses: dict[str, Status], is_over: bool
) -> None:
    assert bool(StopConditions(config).reached(tally(steps, time_s), statuses)) is is_over


@pytest.mark.parametrize(
    ("config", "num_episodes", "is_over"),
    [
        (StopConfig(metric_at_least={"win": 0.75}), 20, True),
        (StopConfig(metric_at_least={"win": 0.75}), 19, False),
        (StopConfig(metric_at_least={"win": 0.8}), 20, False),
        (StopConfig(metric_at_least={"win": 0.75, "way": 11.0}), 20, False),
        (StopConfig(metric_at_least={"win": 0.75, "way": 10.0}), 20, True),
        (StopConfig(metric_at_least={"other": -1.0}), 20, False),
        (StopConfig(metric_at_most={"way": 10.0}), 20, True),
        (StopConfig(metric_at_most={"way": 9.0}), 20, False),
        (StopConfig(metric_at_least={"win": 1.0}, metric_at_most={"way": 10.0}), 20, True),
        (StopConfig(episode_return={"a": 1.0}, metric_at_most={"way": 10.0}), 20, True),
    ],
)
def test_a_run_ends_once_all_metrics_are_reached(
    config: StopConfig, num_episodes: int, is_over: bool
) -> None:
    made = Tally()
    episode = {"win": {"__common__": 0.75}, "way": {"a": 5.0, "b": 15.0}}
    metrics = [episode] * num_episodes + [{}] * 5
    made.add("simulation-0", SimulationReport(1, [{}] * len(metrics), metrics=metrics))
    assert bool(StopConditions(config).reached(made, {})) is is_over


def left_s(num: int, per_s: float, passed_s: float, **stop: Any) -> float | None:
    now = tally(num, passed_s)
    now.env_steps_per_s = per_s
    return StopConditions(StopConfig(**stop)).time_left_s(now, {})


@pytest.mark.parametrize(
    ("run", "stop", "expected"),
    [
        ((40_000, 200.0, 200.0), {"env_steps": 100_000, "time_s": 450.0}, 250.0),
        ((40_000, 200.0, 200.0), {"env_steps": 100_000}, 300.0),
        ((5, 0.0, 0.0), {"env_steps": 5, "time_s": 10.0}, 0.0),
        ((6, 1.0, 0.0), {"env_steps": 5}, 0.0),
        ((5, 1.0, 1.0), {}, None),
        ((0, 0.0, 0.0), {"env_steps": 100_000}, None),
        ((0, 0.0, 0.0), {"env_steps": 100, "time_s": 60.0}, 60.0),
    ],
)
def test_the_time_left_is_that_of_the_first_condition_to_hold(
    run: tuple[int, float, float], stop: dict[str, float], expected: float | None
) -> None:
    assert left_s(*run, **stop) == expected


def test_conditions_and_the_time_left_are_printed() -> None:
    conditions = StopConditions(StopConfig(env_steps=1_000, time_s=60.0))
    assert conditions.text == "1,000 env steps or 60 s"
    running = tally(500, 10.0)
    running.env_steps_per_s = 100.0
    assert conditions.time_left_s(running, {}) == pytest.approx(5.0)
    running.env_steps_per_s = 0.0
    assert conditions.time_left_s(running, {}) == pytest.approx(50.0)
    assert StopConditions(StopConfig()).text == "Ctrl-C"
    metrics = StopConfig(metric_at_least={"win": 0.9, "b": 2}, metric_at_most={"way": 10})
    assert StopConditions(metrics).text == "win ≥ 0.9 and b ≥ 2 or way ≤ 10"


@pytest.mark.parametrize(
    ("steps", "statuses", "text"),
    [
        (10, {}, ""),
        (1_000, {}, "1,000 env steps"),
        (10, {"a": status(3)}, "3 iterations of every server that learns"),
        (
            10,
            {"a": status(0, 100, 7.0), "b": status(0, 100, 9.0)},
            "'a' returns 7 and 'b' returns 8",
        ),
    ],
)
def test_the_condition_that_ended_a_run_is_named(
    steps: int, statuses: dict[str, Status], text: str
) -> None:
    config = StopConfig(env_steps=1_000, iterations=3, episode_return={"a": 7.0, "b": 8.0})
    assert StopConditions(config).reached(tally(steps), statuses) == text
