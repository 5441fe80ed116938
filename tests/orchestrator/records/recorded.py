"""Makes up runs for tests: a team of two wolves against one sheep."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from muxrl.orchestrator.config import ExperimentConfig, to_yaml
from muxrl.orchestrator.records.metrics import MetricsWriter
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.protocol import assignment

ASSIGNMENT = "qmix:wolf_0,wolf_1|ppo:sheep"
SERVERS = {
    "wolves": {"algorithm": "QMIX", "agents": ["wolf_0", "wolf_1"], "groups": {}},
    "sheep": {"algorithm": "PPO", "agents": ["sheep"], "groups": {}},
}


def new_run(root: Path, seed: int = 1, assignment: str = ASSIGNMENT, **plan: Any) -> RunDirectory:
    run = RunDirectory.create(root, "tag", datetime(2026, 11, 21))
    run.write_plan({"servers": SERVERS, "assignment": assignment, "seed": seed, **plan})
    return run


def run_of(
    root: Path, name: str, config: ExperimentConfig, defaults: Any = None, **plan: Any
) -> RunDirectory:
    """Returns a run's directory with its config and its servers' plan; agents are no patterns."""
    run = RunDirectory.create(root, name.lower(), datetime(2026, 11, 21))
    run.write_config(to_yaml(config))
    labels = assignment.server_labels({s: c.algorithm for s, c in config.servers.items()})
    servers = {
        server_id: {
            "algorithm": server.algorithm,
            "agents": server.agents,
            "groups": {},
            "learns": server.algorithm not in ("RANDOM", "SCRIPTED", "FROZEN"),
            **({} if defaults is None else {"defaults": {"settings": defaults}}),
        }
        for server_id, server in config.servers.items()
    }
    who = assignment.canonical({labels[s]: c.agents for s, c in config.servers.items()})
    run.write_plan({"servers": servers, "assignment": who, "seed": config.seed, **plan})
    return run


def evaluation(
    env_steps: int,
    replaced: str | None,
    wolf_0: Sequence[float | None],
    wolf_1: Sequence[float | None],
    sheep: Sequence[float | None],
    should_explore: bool = False,
) -> dict[str, Any]:
    return {
        "time_s": env_steps / 100,
        "env_steps": env_steps,
        "replaced": replaced,
        "should_explore": should_explore,
        "num_episodes": len(sheep),
        "returns": {"wolf_0": wolf_0, "wolf_1": wolf_1, "sheep": sheep},
    }


def write_whole_run(run: RunDirectory, shift: float = 0.0) -> None:
    """Writes a run with two evaluations: the wolves end about 5 above random, the sheep 1 below.

    Seeds with different shifts have nearly the same advantages.
    """

    def shifted(values: Sequence[float]) -> list[float]:
        return [value + shift for value in values]

    with MetricsWriter(run) as metrics:
        for env_steps in (0, 1_000):
            gain = 5.0 if env_steps else 0.0
            learned, flat = shifted([gain, gain + 1]), shifted([0.01, 0.99 + shift / 1e3])
            loss = -1.0 if env_steps else 0.0
            poor = shifted([loss - 0.01, loss + 0.01])
            for replaced, wolves, sheep in (
                (None, learned, poor),
                ("wolves", flat, poor),
                ("sheep", learned, shifted([0.01, -0.01 + shift / 1e3])),
            ):
                metrics.evaluation(evaluation(env_steps, replaced, wolves, wolves, sheep))
        for env_steps, level in ((100, None), (500, 1.0), (990, 3.0)):
            by_agent: Mapping[str, float | None] = {"wolf_0": level, "wolf_1": 1.0, "sheep": None}
            metrics.joint({"env_steps": env_steps, "episode_return_mean": by_agent})
        metrics.server("wolves", {"env_steps": 980, "episode_return_mean": 77.0})
        metrics.server("sheep", {"env_steps": 960, "episode_return_mean": None})
        metrics.server("sheep", {"env_steps": 970, "episode_return_mean": -4.0})


def whole_run(root: Path, seed: int = 1, shift: float = 0.0) -> RunDirectory:
    run = new_run(root, seed)
    write_whole_run(run, shift)
    return run


def play(simulation: Any, seed: int, act: Callable[[str, int], Any], **options: float) -> list[Any]:
    """Plays an episode in which agents act by their name and the step; returns its steps."""
    observations, _ = simulation.reset(seed, options or None)
    steps: list[Any] = []
    while observations:
        steps.append(simulation.step({a: act(a, len(steps)) for a in observations}))
        observations = {} if steps[-1].is_over else steps[-1].observations
    return steps
