"""Cases that do not fit in a sweep: each trains through a server and has its own way to measure.

A study's `cases.py` is a table of cases and a call of `main`::

    python -m muxrl.experiments.studies.two_step.cases --out runs/two_step

`main` writes `outcomes.json`, a list with one record for each case and seed, and draws the study's
picture. A case and seed that are already in `--out` are not run again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import fmean

from muxrl.client.env_loop import EnvLoop
from muxrl.experiments.studies.outcomes import (
    Figures,
    Outcome,
    draw_outcomes,
    made_with,
    read_outcomes,
    write_outcomes,
)
from muxrl.orchestrator.config import ExperimentConfig, load_config
from muxrl.orchestrator.launch.in_process import Served, serve
from muxrl.orchestrator.launch.parameters import ParameterProgress
from muxrl.orchestrator.storage.versions import software_versions
from muxrl.orchestrator.supervise.simulation_process import EpisodeSeeds

Measure = Callable[[Served], Figures]


def evaluated(
    num_episodes: int,
    *,
    should_explore: bool = False,
    combine: Callable[[Iterable[float]], float] = fmean,
) -> Measure:
    """Returns a rule that measures the mean return of seeded evaluation episodes.

    Args:
        num_episodes: number of episodes.
        should_explore: whether actions are sampled as in training, or greedy.
        combine: computes an episode's return from its agents' returns: their mean, or `sum`.
    """

    def measure(served: Served) -> Figures:
        results = served.evaluate(num_episodes, should_explore=should_explore)
        return {"return": fmean(combine(result.returns.values()) for result in results)}

    return measure


def train(
    config: ExperimentConfig,
    env_steps: int,
    every: int | None,
    measure: Measure,
    *,
    is_enough: Callable[[Figures], bool] = lambda figures: False,
    measure_last: Measure | None = None,
) -> dict[int, Figures]:
    """Trains an experiment's servers in this process, and measures them on the way.

    Measuring happens between two env steps and leaves open training episodes as they are. The last
    measurement is made once all servers have finished training. Schedules of the simulation's
    parameters move on only at measurements.

    Args:
        config: the experiment; its environments run in lockstep.
        env_steps: budget.
        every: env steps between two measurements; None: only the last one is made.
        measure: measures the servers.
        is_enough: whether figures end the training before the budget is spent.
        measure_last: measures after training; None: `measure`.

    Returns:
        Figures by env steps, with `time_s` and `cpu_s` added: wall and processor seconds of
        training so far, measuring left out. Simulations, client and servers share this process.

    Raises:
        ConfigError: the config is wrong.
        RuntimeError: training failed.
    """
    measured: dict[int, Figures] = {}
    with serve(config) as served, served.client() as client:
        num_envs = config.simulation.num_envs_per_process
        progress = ParameterProgress(config.simulation.parameters, {})
        loop = EnvLoop(
            [served.simulation() for _ in range(num_envs)],
            client,
            seeds=EpisodeSeeds(1000 * config.seed),
            parameters=progress.now(0),
        )
        clock = _Clock()

        def take(rule: Measure) -> Figures:
            clock.stop()
            served.check()
            figures = {**rule(served), "time_s": clock.time_s, "cpu_s": clock.cpu_s}
            measured[loop.num_env_steps] = figures
            loop.parameters = progress.now(loop.num_env_steps)
            clock.start()
            return figures

        def is_over() -> bool:
            if loop.num_env_steps >= env_steps:
                return True
            is_due = every is not None and loop.num_env_steps >= (len(measured) + 1) * every
            return is_due and is_enough(take(measure))

        clock.start()
        loop.run(should_stop=is_over)
        served.check()
        for server in served.servers.values():
            server.finish_training()
        take(measure_last or measure)
    return measured


def held(is_good: Callable[[Figures], bool]) -> Callable[[Figures], bool]:
    """Returns a rule for `train` that is met once two measurements in a row are good."""
    was_good = False

    def is_enough(figures: Figures) -> bool:
        nonlocal was_good
        before, was_good = was_good, is_good(figures)
        return before and was_good

    return is_enough


class _Clock:
    """Adds up wall and processor time while it runs."""

    def __init__(self) -> None:
        self.time_s = self.cpu_s = 0.0
        self._since = 0.0, 0.0

    def start(self) -> None:
        self._since = time.monotonic(), time.process_time()

    def stop(self) -> None:
        self.time_s = round(self.time_s + time.monotonic() - self._since[0], 2)
        self.cpu_s = round(self.cpu_s + time.process_time() - self._since[1], 2)


@dataclass(frozen=True)
class Case:
    """One experiment, its budget, and how it is measured."""

    config: str
    """Name of a packaged config, or a path."""
    overrides: tuple[str, ...]
    env_steps: int
    measure: Measure
    every: int | None = None
    """Env steps between two measurements; None: only one, after training."""
    levels: Mapping[str, float] = field(default_factory=dict)
    """Returns that are known beforehand, by name: "random", "optimum"."""

    def experiment(self, seed: int) -> ExperimentConfig:
        """Returns the experiment.

        Raises:
            ConfigError: the overrides do not fit the schema.
        """
        return load_config(self.config, [f"seed={seed}", *self.overrides])

    def train(self, seed: int, env_steps: int) -> dict[int, Figures]:
        """Trains and measures; see `train`."""
        return train(self.experiment(seed), env_steps, self.every, self.measure)

    def train_until(
        self, seed: int, env_steps: int, is_good: Callable[[Figures], bool]
    ) -> dict[int, Figures]:
        """Trains until figures were good in two measurements in a row, for `env_steps` at most.

        A case without `every` is measured eight times.
        """
        every = self.every or env_steps // 8
        enough = held(is_good)
        return train(self.experiment(seed), env_steps, every, self.measure, is_enough=enough)


@dataclass(frozen=True)
class CaseTable:
    """The cases of a study."""

    cases: Mapping[str, Case]
    """By name; cases whose names begin with the same "TASK: " share a panel of the picture."""
    seeds: tuple[int, ...] = (0,)
    title: str = ""
    """Title of the picture, which says how returns are evaluated; "": no picture of curves."""
    draw_own: Callable[[Sequence[Outcome], Path], None] | None = None
    """Draws a picture of the study's own into a folder instead."""

    def run(
        self,
        name: str,
        seed: int = 0,
        env_steps: int | None = None,
        *,
        until: Callable[[Figures], bool] | None = None,
    ) -> Outcome:
        """Trains one case.

        Args:
            name: of the case.
            seed: of the experiment.
            env_steps: budget; None takes the case's own.
            until: tells whether figures are good, see `Case.train_until`; None: the whole budget
                is spent.
        """
        case = self.cases[name]
        env_steps = env_steps or case.env_steps
        if until is None:
            measured = case.train(seed, env_steps)
        else:
            measured = case.train_until(seed, env_steps, until)
        versions = software_versions(case.experiment(seed).simulation.env)
        return Outcome(name, seed, case.levels, measured, versions)

    def draw(self, outcomes: Sequence[Outcome], folder: Path) -> None:
        """Draws the picture into `folder`, if the study has one."""
        outcomes = sorted(outcomes, key=lambda outcome: [*self.cases].index(outcome.case))
        if self.draw_own is not None:
            self.draw_own(outcomes, folder)
        elif self.title:
            draw_outcomes(outcomes, self.title, folder)


def main(table: CaseTable, description: str | None) -> None:
    """Runs the cases that the command line names, and draws the picture."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--cases", nargs="+", default=["*"], metavar="NAME", help="or patterns")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(table.seeds))
    parser.add_argument("--env-steps", type=int, help="instead of each case's own budget")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    args = parser.parse_args()
    unknown = [p for p in args.cases if not any(fnmatchcase(name, p) for name in table.cases)]
    if unknown:
        parser.error(f"no case is called {unknown[0]!r}; there are {', '.join(table.cases)}")
    args.out.mkdir(parents=True, exist_ok=True)
    there = {(outcome.case, outcome.seed) for outcome in read_outcomes(args.out)}
    # Seed by seed, so that an interrupted study has equally many seeds of all cases.
    for seed in args.seeds:
        for name, case in table.cases.items():
            if not any(fnmatchcase(name, pattern) for pattern in args.cases):
                continue
            if (name, seed) in there:
                print(f"{name}, seed {seed}: has an outcome already")
                continue
            print(f"{name}, seed {seed}: training", file=sys.stderr, flush=True)
            outcome = table.run(name, seed, args.env_steps)
            write_outcomes(args.out, [*read_outcomes(args.out), outcome])
            shown = ", ".join(f"{key} {value:.4g}" for key, value in outcome.final.items())
            levels = ", ".join(f"{key} {value:.4g}" for key, value in case.levels.items())
            print(f"{name}, seed {seed}: {shown}; known: {levels}", flush=True)
    outcomes = read_outcomes(args.out)
    print(made_with(outcomes))
    table.draw(outcomes, args.out)
