"""Makes up runs for the tests of comparisons: two roles, a curve for each, any number of seeds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.orchestrator.records.recorded import run_of

from muxrl.orchestrator.comparisons.findings.findings import Findings
from muxrl.orchestrator.comparisons.findings.frames import TableName
from muxrl.orchestrator.config import (
    EvaluationConfig,
    ExperimentConfig,
    SimulationConfig,
    seeds,
)
from muxrl.orchestrator.records.metrics import MetricsWriter
from muxrl.servers.config import ServerConfig

ENV = "muxrl.experiments.simulations.zero_cost:ZeroCost"
KWARGS = {"num_agents": 3, "num_steps": 5}
HUNTERS, PREY = ["agent_0", "agent_1"], ["agent_2"]


def made_up_run(
    root: Path,
    hunters: str,
    prey: str,
    seed: int,
    level: float,
    *,
    budget: int = 1_000,
    points: Sequence[float] = (0.0, 0.5, 1.0),
    num_episodes: int = 4,
    kwargs: Mapping[str, Any] = KWARGS,
    should_explore: bool = False,
    evaluation_seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    env: str = ENV,
    simulation: Mapping[str, Any] | None = None,
    prey_gain: float | None = None,
    has_metrics: bool = False,
    untrained: float | None = None,
    defaults: Mapping[str, Any] | None = None,
    beyond: int = 0,
) -> Path:
    """Writes a run in which hunters rise from 0 to `level` and the prey falls from 0 to -`level`.

    Episodes lie around these means. With random actions in their place, the hunters return 0.

    Args:
        prey_gain: with random actions in its place the prey would end this much lower; None: that
            is not measured.
        has_metrics: every second episode is won, and agent_1 hits ten times as often as it earns.
        untrained: what untrained hunters return at the last point; None: not measured.
        defaults: of the settings of both algorithms; None: they were not recorded.
        beyond: training had played this many more env steps than an evaluation after it says.
    """
    servers = {
        "hunters": ServerConfig(algorithm=hunters, agents=HUNTERS, settings=dict(settings or {})),
        "prey": ServerConfig(algorithm=prey, agents=PREY),
    }
    config = ExperimentConfig(
        name="made-up",
        seed=seed,
        simulation=SimulationConfig(env=env, kwargs=dict(kwargs), **(simulation or {})),
        servers=servers,
        evaluation=EvaluationConfig(seed=evaluation_seed, should_explore=should_explore),
    )
    run = run_of(root, f"{hunters}-{prey}-{seed}", config, defaults)
    around = [(-1.0) ** i for i in range(num_episodes)]
    with MetricsWriter(run) as metrics:
        for part in points:
            conditions = [None, "hunters", *(() if prey_gain is None else ("prey",))]
            if untrained is not None and part == points[-1]:
                conditions.append("hunters:untrained")
            for replaced in conditions:
                mean = 0.0 if replaced == "hunters" else part * level
                mean = (untrained or 0.0) if replaced == "hunters:untrained" else mean
                hunting = [mean + 0.1 * each for each in around]
                lost = part * (prey_gain or 0.0) if replaced == "prey" else 0.0
                told = {
                    "win": {"__common__": [float(each > 0) for each in around]},
                    "hits": {"agent_1": [10 * value for value in hunting]},
                }
                metrics.evaluation(
                    {
                        **({"metrics": told} if has_metrics else {}),
                        "time_s": part * budget / 100,
                        "env_steps": int(part * budget),
                        "env_steps_played": int(part * budget) + beyond * (part > 0),
                        "replaced": replaced,
                        "should_explore": should_explore,
                        "num_episodes": num_episodes,
                        "first_seed": seeds.evaluation_seed(config),
                        "returns": {
                            "agent_0": hunting,
                            "agent_1": hunting,
                            "agent_2": [-value - lost for value in hunting],
                        },
                    }
                )
    return run.path


def made_up_runs(root: Path) -> list[Path]:
    """Writes runs in which QMIX or PPO hunts, and PPO or A2C flees, with three seeds each.

    QMIX returns 2 more than PPO as hunter, A2C 1 less than PPO as prey.
    """
    return [
        made_up_run(root, hunters, prey, seed, base + extra + slope * (seed - 2))
        for hunters, base, slope in (("QMIX", 5.2, 0.1), ("PPO", 3.2, 0.11))
        for prey, extra in (("PPO", 0.0), ("A2C", 1.0))
        for seed in (1, 2, 3)
    ]


def row(found: Findings, table: TableName, **where: Any) -> Any:
    """Returns the only row of a comparison's table with these values; columns are attributes."""
    (one,) = rows(found, table, **where)
    return SimpleNamespace(**one)


def rows(found: Findings, table: TableName, **where: Any) -> list[dict[str, Any]]:
    """Returns the rows of a comparison's table with these values."""
    records: list[dict[str, Any]] = found.frames[table].to_dict("records")
    return [one for one in records if where.items() <= one.items()]
