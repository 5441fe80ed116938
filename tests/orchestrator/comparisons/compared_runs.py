"""Runs made up for the tests of comparisons: two roles, a curve each, as many seeds as wanted."""

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
    """Hunters rise from 0 to `level`, the prey falls from 0 to -`level`; episodes lie around it.

    With random actions in the hunters' place their return is 0. With random actions in the prey's
    it would end `prey_gain` lower; None: that is not measured. At the last point untrained hunters
    return `untrained`; None: not measured. Metrics: every second episode is
    won, and agent_1 hits as often as it earns, ten times. `defaults` are those of both algorithms'
    settings; None: they were not recorded. Training played `beyond` more env steps than an
    evaluation after it says.
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
    """QMIX and PPO hunt, PPO and A2C flee, three seeds each; QMIX is 2 above, A2C flees 1 worse."""
    return [
        made_up_run(root, hunters, prey, seed, base + extra + slope * (seed - 2))
        for hunters, base, slope in (("QMIX", 5.2, 0.1), ("PPO", 3.2, 0.11))
        for prey, extra in (("PPO", 0.0), ("A2C", 1.0))
        for seed in (1, 2, 3)
    ]


def row(found: Findings, table: TableName, **where: Any) -> Any:
    """The only row of a comparison's frame with these values, by attribute; `return` is a key."""
    (one,) = rows(found, table, **where)
    return SimpleNamespace(**one)


def rows(found: Findings, table: TableName, **where: Any) -> list[dict[str, Any]]:
    """Its rows with these values."""
    records: list[dict[str, Any]] = found.frames[table].to_dict("records")
    return [one for one in records if where.items() <= one.items()]
