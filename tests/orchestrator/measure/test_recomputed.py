"""Each number of a report and a comparison equals what SciPy computes from known returns."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from tests.orchestrator.comparisons.compared_runs import row
from tests.orchestrator.records.recorded import run_of

from muxrl.client.adapters.simulation import COMMON
from muxrl.orchestrator.comparisons.compare import compare_runs
from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig
from muxrl.orchestrator.measure.results import results_of
from muxrl.orchestrator.records.metrics import MetricsWriter
from muxrl.orchestrator.records.recorded_run import RecordedRun
from muxrl.servers.config import ServerConfig

SEEDS, EPISODES = 4, 30
CONDITIONS = (None, "all", "all:untrained")
Drawn = Mapping[str | None, np.ndarray]
"""By condition: returns ``[SEEDS, EPISODES]``, NaN in episodes without the agent."""


def drawn(seed: int, *gains: float) -> Drawn:
    rng = np.random.default_rng(seed)
    luck = rng.normal(size=(SEEDS, EPISODES))  # an episode's luck is the same in all conditions
    found = {}
    for condition, gain in zip(CONDITIONS, gains, strict=True):
        own = gain + rng.normal(0, 0.5, (SEEDS, 1)) + rng.normal(size=luck.shape)
        found[condition] = np.where(rng.random(luck.shape) < 0.1, math.nan, luck + own)
    return found


def written(root: Path, returns: Drawn, algorithm: str = "PPO", **plan: Any) -> list[Path]:
    """Writes runs with these returns; a win is a return above 0, missing if the return is."""
    paths = []
    for seed in range(SEEDS):
        servers = {"all": ServerConfig(algorithm=algorithm, agents=["x"])}
        simulation = SimulationConfig(env="nowhere:Game", metrics={"win": "last"})
        config = ExperimentConfig(name="drawn", seed=seed, simulation=simulation, servers=servers)
        run = run_of(root, f"{algorithm}-{seed}", config, metrics=["win"], **plan)
        with MetricsWriter(run) as metrics:
            for condition, of_seeds in returns.items():
                known = [None if math.isnan(value) else value for value in of_seeds[seed].tolist()]
                win = [None if value is None else float(value > 0) for value in known]
                row = {"env_steps": 100, "replaced": condition, "num_episodes": EPISODES}
                row |= {} if plan else {"first_seed": 1_000 * seed}
                won = {"win": {COMMON: win}}
                metrics.evaluation({**row, "returns": {"x": known}, "metrics": won})
            metrics.server("all", {"env_steps": 100, "weights_seq_no": 1})
        paths.append(run.path)
    return paths


def over_seeds(by_seed: np.ndarray) -> list[float]:
    return [by_seed.mean(), *stats.ttest_1samp(by_seed, 0.0).confidence_interval()]


def ends(estimate: Any) -> list[float]:
    """Returns the mean and interval of an estimate in a summary or a finding."""
    if isinstance(estimate, Mapping):
        return [estimate[key] for key in ("mean", "low", "high")]
    return [estimate.mean, estimate.low, estimate.high]


def summary_of(paths: list[Path], *, over_episodes: bool = False) -> dict[str, Any]:
    runs = [RecordedRun.read(path) for path in paths]
    found: dict[str, Any] = json.loads(
        json.dumps(results_of(runs, over_episodes=over_episodes).to_dict())
    )
    return found


def test_intervals_of_several_seeds_are_over_seeds(tmp_path: Path) -> None:
    returns = drawn(1, 1.0, 0.0, 0.5)
    learned, random, untrained = returns.values()
    summary = summary_of(written(tmp_path, returns))
    assert summary["intervals_over"] == "seeds"
    final = summary["servers"]["all"]["final"]
    for name, values in (("learned", learned), ("random", random), ("untrained", untrained)):
        assert ends(final[name]) == pytest.approx(over_seeds(np.nanmean(values, axis=1)))
    for name, others in (("advantage", random), ("over_untrained", untrained)):
        by_seed = np.nanmean(learned - others, axis=1)  # pairs are of the same episode
        assert ends(final[name]) == pytest.approx(over_seeds(by_seed))
    advantage = np.nanmean(learned - random, axis=1)
    assert (final["num_seeds_above"], final["num_seeds_below"]) == (
        (advantage > 0).sum(),
        (advantage < 0).sum(),
    )
    assert final["num_episodes"] == np.isfinite(learned).sum()
    (win,) = (metric for metric in summary["metrics"] if metric["name"] == "win")
    assert win["evaluated"]["mean"] == pytest.approx(
        np.nanmean(np.where(np.isnan(learned), learned, learned > 0), axis=1).mean()
    )
    assert win["num_episodes"] == final["num_episodes"]
    middle = stats.trim_mean(learned[np.isfinite(learned)], 0.25)
    assert final["learned_interquartile_mean"] == pytest.approx(middle)


def test_over_episodes_each_seed_is_a_stratum(tmp_path: Path) -> None:
    learned, random, _ = (returns := drawn(2, 1.0, 0.0, 0.5)).values()
    # So that all seeds have equally many.
    whole = {key: np.nan_to_num(values) for key, values in returns.items()}
    final = summary_of(written(tmp_path, whole), over_episodes=True)["servers"]["all"]["final"]
    pairs = np.nan_to_num(learned) - np.nan_to_num(random)
    error = math.sqrt(pairs.var(axis=1, ddof=1).sum() / EPISODES) / SEEDS
    interval = stats.t.interval(0.95, SEEDS * (EPISODES - 1), pairs.mean(), error)
    assert ends(final["advantage"]) == pytest.approx([pairs.mean(), *interval])


def test_intervals_of_one_run_are_over_episodes(tmp_path: Path) -> None:
    learned, random, _ = (returns := drawn(3, 1.0, 0.0, 0.5)).values()
    summary = summary_of(written(tmp_path, returns)[:1])
    final = summary["servers"]["all"]["final"]
    pairs = learned[0] - random[0]
    assert ends(final["advantage"]) == pytest.approx(over_seeds(pairs[np.isfinite(pairs)]))
    won = learned[0][np.isfinite(learned[0])] > 0
    interval = stats.binomtest(int(won.sum()), len(won)).proportion_ci(method="wilson")
    win = next(metric for metric in summary["metrics"] if metric["name"] == "win")
    assert ends(win["evaluated"]) == pytest.approx([won.mean(), *interval])


def test_episodes_of_an_external_simulation_are_no_pairs(tmp_path: Path) -> None:
    learned, random, _ = (returns := drawn(4, 1.0, 0.0, 0.5)).values()
    final = summary_of(written(tmp_path, returns, is_external=True)[:1])["servers"]["all"]["final"]
    ours, theirs = (values[0][np.isfinite(values[0])] for values in (learned, random))
    interval = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval()
    assert ends(final["advantage"]) == pytest.approx([ours.mean() - theirs.mean(), *interval])


def test_a_comparison_of_the_same_draws(tmp_path: Path) -> None:
    first, second = drawn(5, 1.0, 0.0, 0.5), drawn(6, 0.4, 0.0, 0.2)
    paths = [*written(tmp_path, first), *written(tmp_path, second, "A2C")]
    found = compare_runs(paths, num_episodes=1)
    ours, theirs = (np.nanmean(returns[None], axis=1) for returns in (first, second))
    standing = row(found, "standings", contestant="ppo x", subject="role:x")
    assert standing.iqm.mean == pytest.approx(stats.trim_mean(ours, 0.25))
    assert ends(standing.mean) == pytest.approx(over_seeds(ours))
    pairing = row(found, "pairings", first="ppo")
    assert ends(pairing.difference) == pytest.approx(over_seeds(ours - theirs))
    wins = stats.mannwhitneyu(ours, theirs).statistic
    assert pairing.improvement.mean == pytest.approx(wins / SEEDS**2)
    advantage = np.nanmean(first[None] - first["all"], axis=1)
    assert ends(row(found, "learners", label="ppo").advantage) == pytest.approx(
        over_seeds(advantage)
    )
