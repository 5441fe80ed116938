"""One algorithm against another on one simulation: the same budget, seeds and evaluation for all.

    python -m muxrl.experiments.study run spread --out experiments/results/spread
    python -m muxrl.experiments.study report experiments/results/spread

A study is a YAML file in `experiments/studies`: a simulation, a budget, a rule of evaluation, and
the contestants, each with the settings of the server that serves all agents. Every contestant
trains through a real policy server over loopback, in a process of its own, with one torch thread,
for exactly the same number of env steps. It is evaluated before, on the way and after, on the same
seeded episodes, which never train. Returns are the simulation's raw rewards; settings such as
`team_reward` change what is learnt from, never what is reported.

Every run leaves one JSON file. One that is there is not made again, so an interrupted study goes
on where it was. Random agents are measured in each study, fixed policies where a study has some.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from muxrl.client import MultiplexingClient
from muxrl.client.adapters import Simulation, make_simulation
from muxrl.client.env_loop import EnvLoop, EpisodeResult
from muxrl.client.random_policy import RandomTransport
from muxrl.experiments.study_report import write_report
from muxrl.orchestrator.config import ConfigError, ExperimentConfig, load_config, prepare
from muxrl.orchestrator.records.json_files import write_text
from muxrl.orchestrator.records.versions import software_versions
from muxrl.orchestrator.runs.in_process import serve
from muxrl.orchestrator.runs.processes import first_seeds
from muxrl.orchestrator.runs.ray_session import ONE_THREAD
from muxrl.orchestrator.runs.signals import claim_signals

RANDOM = "random"
"""The contestant that every study has: uniformly random actions."""
_SERVER = "team"
_STUDIES = Path(__file__).resolve().parent / "studies"
_EVALUATION_SEED = 10_000
"""Of the first evaluation episode; training's seeds stay below it."""
_LOG_TAIL = 25  # lines shown of a run that failed

Rule = Literal["greedy", "sampled"]


@dataclass
class ContestantConfig:
    """One algorithm and how it is set."""

    evaluation: Rule = "greedy"
    """Rule of the curve: "greedy", or "sampled": actions as in training, drawn from the policy or,
    for value-based ones, random with the epsilon of the moment. After training "sampled" ones are
    evaluated in both ways."""
    is_trained: bool = True
    """False: a fixed policy to compare with (RANDOM, SCRIPTED, FROZEN); it is only evaluated."""
    server: dict[str, Any] = field(default_factory=dict)
    """As under `servers.NAME` of an experiment; `agents` need not be said, it serves all."""


@dataclass
class StudyConfig:
    """What is held equal, and who is compared."""

    name: str = ""
    """Of the study; "" takes the file's."""
    config: str = ""
    """The experiment whose simulation it is: a bare name or a path."""
    overrides: list[str] = field(default_factory=list)
    """`key.path=value` items for that experiment."""
    num_envs: int = 8
    """Environments in lockstep, one frame for all."""
    env_steps: int = 100_000
    """The budget of every run."""
    interval_env_steps: int = 10_000
    """Env steps between two evaluations."""
    num_episodes: int = 32
    """Of each evaluation on the way."""
    final_num_episodes: int = 200
    """Of the evaluation after training."""
    agents: Literal["mean", "sum"] = "mean"
    """How the agents' returns become an episode's."""
    optimum: float | None = None
    """The best return there is, null: unknown."""
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    """One run for each, of every contestant."""
    contestants: dict[str, ContestantConfig] = field(default_factory=dict)
    """By the name that tables and pictures use."""


@dataclass
class Point:
    """One evaluation."""

    env_steps: int
    time_s: float
    """Wall time of training so far, evaluations left out."""
    cpu_s: float
    """Processor time of simulation, client and server together, evaluations left out."""
    returns: list[float]
    """One for each episode, in the order of their seeds."""


def find_study(name: str) -> StudyConfig:
    """Reads a study: a path, or the bare name of one in `experiments/studies`.

    Raises:
        ConfigError: there is no such file, or something in it is unknown or of a wrong type.
    """
    path = Path(name) if Path(name).is_file() else _STUDIES / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in _STUDIES.glob("*.yaml")))
        raise ConfigError([f"no such study; there are {known}"], name)
    try:
        schema = OmegaConf.structured(StudyConfig(name=path.stem))
        study = OmegaConf.to_object(OmegaConf.merge(schema, OmegaConf.load(path)))
    except OmegaConfBaseException as error:
        raise ConfigError([str(error).splitlines()[0]], str(path)) from error
    assert isinstance(study, StudyConfig)
    return study


def experiment_of(study: StudyConfig, contestant: str, seed: int) -> ExperimentConfig:
    """Returns the experiment in which `contestant` serves all agents.

    Raises:
        ConfigError: its settings do not fit the schema.
    """
    server = {"agents": ["*"], **study.contestants[contestant].server}
    return load_config(
        study.config, [*study.overrides, f"seed={seed}", f"servers.{_SERVER}={json.dumps(server)}"]
    )


def train(study: StudyConfig, contestant: str, seed: int) -> dict[str, Any]:
    """Trains one contestant through a server.

    Returns:
        The record of the run, ready for JSON.

    Raises:
        ConfigError: the contestant's settings are wrong.
        RuntimeError: its training failed.
    """
    rule = study.contestants[contestant].evaluation
    env_steps = study.env_steps if study.contestants[contestant].is_trained else 0
    config = experiment_of(study, contestant, seed)
    curve: list[Point] = []
    with serve(config) as served, served.client() as client, served.client() as evaluating:
        claim_signals()  # ray.init took it
        arenas = [served.simulation() for _ in range(study.num_envs)]

        def evaluate(num_episodes: int, rule: Rule) -> list[float]:
            return _play(study, arenas, evaluating, num_episodes, rule == "sampled")

        clock = _Clock()

        def measure_when_due() -> bool:
            """Asked once a step, between two of them: open episodes are left as they are."""
            if loop.num_env_steps >= len(curve) * study.interval_env_steps:
                served.check()
                clock.stop()
                returns = evaluate(study.num_episodes, rule)
                curve.append(Point(loop.num_env_steps, clock.time_s, clock.cpu_s, returns))
                clock.start()
            return loop.num_env_steps >= env_steps

        first = 1000 * seed
        loop = EnvLoop(
            [served.simulation() for _ in range(study.num_envs)],
            client,
            seeds=first_seeds(first, study.num_envs),
        )
        clock.start()
        if env_steps:
            loop.run(should_stop=measure_when_due)
            served.check()
            for server in served.servers.values():
                server.finish_training()
        clock.stop()
        rules: list[Rule] = ["greedy"] if rule == "greedy" else ["sampled", "greedy"]
        final = {each: evaluate(study.final_num_episodes, each) for each in rules}
        served.check()
        plan = served.experiment.servers[_SERVER]
    return {
        **_record(study, contestant, rule, seed),
        "server": study.contestants[contestant].server,
        "while_learning": plan.while_learning,
        "env_steps": loop.num_env_steps,
        "time_s": round(clock.time_s, 2),
        "cpu_s": round(clock.cpu_s, 2),
        "curve": [_rounded(asdict(point)) for point in curve],
        "final": _rounded(final),
    }


def play_at_random(study: StudyConfig) -> dict[str, Any]:
    """Measures uniformly random agents on the final evaluation's episodes."""
    config = load_config(study.config, study.overrides).simulation
    arenas = [make_simulation(config.env, config.kwargs) for _ in range(study.num_envs)]
    spaces = arenas[0].observation_spaces, arenas[0].action_spaces
    agents = {a: (spaces[0][a], spaces[1][a]) for a in arenas[0].possible_agents}
    with MultiplexingClient({RANDOM: RandomTransport.for_agents(agents)}) as client:
        returns = _play(study, arenas, client, study.final_num_episodes, True)
    return {**_record(study, RANDOM, "sampled", 0), "curve": [], "final": {"sampled": returns}}


def run(
    name: str, contestants: Sequence[str], seeds: Sequence[int], out: Path, jobs: int
) -> list[str]:
    """Makes the runs that are missing, each in a process of its own.

    Args:
        name: of the study.
        contestants: of the study's; empty: all.
        seeds: empty: the study's.
        out: folder of the JSON files.
        jobs: runs at the same time.

    Returns:
        One sentence for each run that failed.

    Raises:
        ConfigError: a contestant is unknown or its settings are wrong; nothing was started.
    """
    study = find_study(name)
    for contestant in contestants:
        if contestant not in study.contestants:
            known = ", ".join(study.contestants)
            raise ConfigError([f"no contestant {contestant!r}; there are {known}"], name)
    contestants = contestants or list(study.contestants)
    for contestant in contestants:
        prepare(experiment_of(study, contestant, 0), needs_stop=False)
    out.mkdir(parents=True, exist_ok=True)
    # Seed by seed, so that a study cut short has as many seeds of one as of another.
    wanted = [
        (contestant, seed)
        for i, seed in enumerate(seeds or study.seeds)
        for contestant in contestants
        if i == 0 or study.contestants[contestant].is_trained
    ]
    missing = [one for one in [(RANDOM, 0), *wanted] if not _path(out, *one).exists()]
    running: set[subprocess.Popen[str]] = set()
    with ThreadPoolExecutor(jobs) as pool:
        try:
            problems = pool.map(
                lambda one: _run_process(name, one[0], one[1], out, running), missing
            )
            return [problem for problem in problems if problem]
        except BaseException:  # Ctrl-C: nothing more begins, and what runs is told to end
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(running):
                process.terminate()
            raise


def _run_process(
    name: str, contestant: str, seed: int, out: Path, running: set[subprocess.Popen[str]]
) -> str:
    """Runs this module in a process of its own; returns what went wrong, "" if nothing did."""
    if _path(out, contestant, seed).exists():  # another runner made it in the meantime
        return ""
    command = [sys.executable, "-m", "muxrl.experiments.study", "one", name, contestant, str(seed)]
    with tempfile.TemporaryFile("w+") as log:
        started = time.monotonic()
        process = subprocess.Popen(
            [*command, "--out", str(out)],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **ONE_THREAD},
            text=True,
        )
        running.add(process)
        process.wait()
        running.discard(process)
        log.seek(0)
        lines = log.read().splitlines()
    elapsed = time.monotonic() - started
    if process.returncode:
        print("\n".join(lines[-_LOG_TAIL:]), file=sys.stderr, flush=True)
        return f"{contestant} seed {seed} ended with code {process.returncode} ({elapsed:.0f} s)"
    print(*lines[-1:], f"({elapsed:.0f} s in all)", flush=True)
    return ""


def _play(
    study: StudyConfig,
    arenas: Sequence[Simulation],
    client: MultiplexingClient,
    num_episodes: int,
    should_explore: bool,
) -> list[float]:
    """Plays the evaluation's episodes; returns their returns in the order of the seeds."""
    results: list[EpisodeResult] = []
    seeds = iter(range(_EVALUATION_SEED, _EVALUATION_SEED + num_episodes))
    loop = EnvLoop(arenas, client, mode="eval", should_explore=should_explore, seeds=seeds)
    loop.run(results.append)
    divisor = len(arenas[0].possible_agents) if study.agents == "mean" else 1
    results.sort(key=lambda result: result.seed or 0)
    return [sum(result.returns.values()) / divisor for result in results]


class _Clock:
    """Adds up wall and processor time while it runs."""

    def __init__(self) -> None:
        self.time_s = self.cpu_s = 0.0
        self._since: tuple[float, float] | None = None

    def start(self) -> None:
        self._since = time.monotonic(), time.process_time()

    def stop(self) -> None:
        assert self._since is not None
        self.time_s += time.monotonic() - self._since[0]
        self.cpu_s += time.process_time() - self._since[1]
        self._since = None


def _record(study: StudyConfig, contestant: str, rule: Rule, seed: int) -> dict[str, Any]:
    """Returns what every run's file begins with."""
    rest = {k: v for k, v in asdict(study).items() if k not in ("contestants", "seeds", "name")}
    return {
        "study": study.name,
        "contestant": contestant,
        "seed": seed,
        "command": f"python -m muxrl.experiments.study one {study.name} {contestant} {seed}",
        "versions": software_versions(),
        "num_cores": os.cpu_count(),
        "machine": platform.machine(),
        "load_average": round(os.getloadavg()[0], 2),
        "rule": rule,
        "evaluation_seeds": [_EVALUATION_SEED, _EVALUATION_SEED + study.final_num_episodes - 1],
        "settings": rest,
    }


def _rounded(value: Any) -> Any:
    """The same with numbers to the fourth decimal, which is finer than any claim."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return round(value, 4) if isinstance(value, float) else value


def _path(out: Path, contestant: str, seed: int) -> Path:
    return out / f"{contestant.lower()}_{seed}.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    running = verbs.add_parser("run", help="makes the runs that are missing")
    running.add_argument("study")
    running.add_argument("--contestants", nargs="+", default=[])
    running.add_argument("--seeds", type=int, nargs="+", default=[])
    running.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    one = verbs.add_parser("one", help="makes one run in this process")
    one.add_argument("study")
    one.add_argument("contestant")
    one.add_argument("seed", type=int)
    for verb in (running, one):
        verb.add_argument("--out", type=Path, required=True)
    report = verbs.add_parser("report", help="writes table and picture of a folder of runs")
    report.add_argument("folder", type=Path)
    args = parser.parse_args()
    claim_signals()
    try:
        if args.verb == "run":
            problems = run(args.study, args.contestants, args.seeds, args.out, args.jobs)
            print(*problems, sep="\n", end="\n" if problems else "", file=sys.stderr)
            return 1 if problems else 0
        if args.verb == "report":
            print(write_report(args.folder))
            return 0
        study = find_study(args.study)
        is_random = args.contestant == RANDOM
        record = play_at_random(study) if is_random else train(study, args.contestant, args.seed)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    args.out.mkdir(parents=True, exist_ok=True)
    write_text(_path(args.out, args.contestant, args.seed), json.dumps(record) + "\n")
    final = ", ".join(f"{r} {np.mean(returns):.3f}" for r, returns in record["final"].items())
    print(f"{args.contestant} seed {args.seed}: {final}; {record.get('time_s', 0):.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
