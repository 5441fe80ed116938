"""Evaluates a finished run again, with frozen servers, on episodes that train nothing.

::

    result = evaluate_run(Path("runs/chase-20261121-101500"), num_episodes=200)
    result.servers["qmix"].returns.mean

An algorithm that cannot learn serves each server's agents from its checkpoint, and all of them play
the episodes of the given seeds together. Weights stay the same bit by bit, and the same call gives
the same returns if the simulation is deterministic for a seed.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from muxrl.client.adapters.around import Around
from muxrl.client.adapters.simulation import COMMON
from muxrl.client.env_loop import EpisodeResult
from muxrl.client.episode_metrics import TRUNCATED
from muxrl.orchestrator.config import Experiment, ExperimentConfig
from muxrl.orchestrator.config.checks import num_evaluation_envs
from muxrl.orchestrator.config.seeds import evaluation_seed
from muxrl.orchestrator.config.shadows import acting
from muxrl.orchestrator.doing import doing
from muxrl.orchestrator.errors import CannotEvaluate
from muxrl.orchestrator.evaluations.evaluated import (
    EvaluatedServer,
    EvaluationResult,
    Returns,
    returns_of,
    roles_by_name,
)
from muxrl.orchestrator.evaluations.filming import filmed_copy
from muxrl.orchestrator.evaluations.frozen import (
    FrozenRun,
    Player,
    open_run,
    prepared,
    seated,
)
from muxrl.orchestrator.launch.in_process import serve_experiment
from muxrl.orchestrator.records.played import ParquetFile, Recorded, Row
from muxrl.orchestrator.records.rows import Metrics
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.storage.json_files import write_json
from muxrl.orchestrator.storage.versions import software_versions
from muxrl.orchestrator.supervise.episodes import (
    make_evaluation_copy,
    metrics_by_name,
    returns_by_agent,
)
from muxrl.protocol.codec import encode_json
from muxrl.protocol.suggestions import similar_or_known
from muxrl.servers.checkpoints.checkpoint import Checkpoint
from muxrl.servers.config import EXTERNAL as OWN_PROCESS
from muxrl.servers.config import ServerConfig, ServerPlan, algorithm_label

FORMAT = 2


def evaluate_run(
    run: str | Path,
    *,
    num_episodes: int = 100,
    seed: int | None = None,
    should_explore: bool | None = None,
    checkpoint: str = "last",
    replace: Mapping[str, str] | None = None,
    parameters: Mapping[str, float] | None = None,
    should_write: bool = True,
    record: Path | None = None,
    video: Path | None = None,
) -> EvaluationResult:
    """Plays episodes with the policies of a run.

    Args:
        run: the run's directory.
        num_episodes: to play.
        seed: of the first episode's reset; each next episode has the next seed. None: the seed of
            the run's own evaluations, so that its final evaluation met the same episodes.
        should_explore: whether stochastic policies are sampled as in training, or take their
            likeliest action; None: as in the run's own evaluations. Value-based policies are greedy
            in any case.
        checkpoint: name of the folder under the run's ``checkpoints``.
        replace: by server: what plays its agents instead: "random", a function as
            "package.module:name" (see SCRIPTED), or the folder of another checkpoint that fits
            them.
        parameters: values of `simulation.parameters` that differ from the run's own evaluations.
        should_write: whether the result is written to the run's ``evaluations``.
        record: a new file for what each agent saw, did and earned: ``.parquet``, or any other name
            for JSON with an object a line; see `muxrl.orchestrator.records.played`.
        video: a new folder for an animated picture of each episode; see `filming.Filmed`.

    Raises:
        CannotEvaluate: there is no such run or checkpoint, the run's simulation is external, or it
            cannot be filmed.
        FileExistsError: `record` or `video` exists.
        ConfigError: the run's config does not fit this muxrl, the simulation, or the checkpoints.
        ServerProblem: a server could not be started.
        SimulationFailed: the simulation raised.
        OSError: the result could not be written.
    """
    if num_episodes < 1:
        raise CannotEvaluate(f"the number of episodes is {num_episodes}, must be at least 1")
    folder, config = open_run(Path(run))
    replaced, acts = dict(replace or {}), acting(config)
    for server_id in replaced:
        if server_id not in acts:
            hint = similar_or_known(server_id, acts, "its servers are")
            raise CannotEvaluate(
                f"run {folder.name!r} has no server {server_id!r} to replace{hint}"
            )
    if should_explore is None:
        should_explore = config.evaluation.should_explore
    first_seed = evaluation_seed(config) if seed is None else seed
    fixed = {**config.evaluation.parameters, **(parameters or {})}
    players = FrozenRun(folder, config, should_explore, checkpoint).players(replaced)
    frozen = dataclasses.replace(
        config,
        simulation=dataclasses.replace(config.simulation, inference_mode="remote"),
        evaluation=dataclasses.replace(config.evaluation, parameters=fixed),
        seed=first_seed,  # also seeds the draws of actions
        servers={server_id: player.server for server_id, player in players.items()},
    )
    experiment = seated(prepared(frozen, folder), players)
    seeds = range(first_seed, first_seed + num_episodes)
    for path in (record, video):
        if path is not None and path.exists():
            raise FileExistsError(f"{path} exists already; give another name")
    if video is not None:
        video.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        recorded = _recorder(record, stack)
        episodes, num_truncated = _play(experiment, players, seeds, recorded, video)
    if not any(episode.returns for episode in episodes):
        raise CannotEvaluate(
            f"all {num_episodes} episodes ended at a bad value (simulation.on_bad_value)"
        )
    result = _result(folder, config, experiment, episodes, replaced, should_explore)
    result = dataclasses.replace(result, num_truncated=num_truncated)
    return _written(result, folder) if should_write else result


def _recorder(record: Path | None, stack: contextlib.ExitStack) -> Callable[[Around], Around]:
    """Returns a function that wraps a simulation to record it in a new file.

    The stack closes the file.
    """
    if record is None:
        return lambda simulation: simulation
    if record.suffix == ".parquet":
        file = stack.enter_context(contextlib.closing(ParquetFile(record)))
        return lambda simulation: Recorded(simulation, partial(file.write, simulation))
    lines = stack.enter_context(record.open("xb"))

    def write(rows: Iterable[Row], parameters: Mapping[str, float]) -> None:
        lines.writelines(encode_json(row) + b"\n" for row in rows)

    return lambda simulation: Recorded(simulation, write)


def _play(
    experiment: Experiment,
    players: Mapping[str, Player],
    seeds: range,
    recorded: Callable[[Around], Around],
    video: Path | None,
) -> tuple[list[EpisodeResult], int]:
    config = experiment.config
    num_envs = num_evaluation_envs(config, len(seeds))
    video = None if video is None else video.absolute()
    doing("starting servers")
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir("."))  # the environment may change the folder
        served = stack.enter_context(serve_experiment(experiment))
        doing("evaluation")
        simulations: list[Around] = []
        for number in range(num_envs):
            make = partial(make_evaluation_copy, config, number)
            simulations.append(recorded(make() if video is None else filmed_copy(make, video)))
            stack.callback(simulations[-1].close)
        explores = {server_id: player.should_explore for server_id, player in players.items()}
        how: Any = {"should_explore": explores, "simulations": simulations}
        episodes = served.evaluate(len(seeds), first_seed=seeds.start, **how)
        return episodes, sum(one.num_truncated for one in simulations)


def _result(
    folder: RunDirectory,
    config: ExperimentConfig,
    experiment: Experiment,
    episodes: Sequence[EpisodeResult],
    replaced: Mapping[str, str],
    should_explore: bool,
) -> EvaluationResult:
    agents = [a for a in experiment.facts.agents if any(a in e.returns for e in episodes)]
    returns = returns_by_agent(episodes, agents)
    values = metrics_by_name(episodes)
    servers = {}
    groups = {}
    for server_id, plan in experiment.servers.items():
        ours = [agent for agent in plan.agents if agent in agents]
        checkpoint = plan.resume_from or plan.settings.get("checkpoint", "")
        explores = should_explore if plan.resume_from else plan.settings.get("should_explore")
        servers[server_id] = EvaluatedServer(
            algorithm=_algorithm(plan, config.servers[server_id], checkpoint),
            rule="fixed" if not checkpoint else "sampled" if explores else "greedy",
            checkpoint=_shown(Path(checkpoint), folder) if checkpoint else "",
            returns=returns_of(returns, ours),
        )
        for group, members in plan.groups.items():
            present = [member for member in members if member in agents]
            if len(members) > 1 and present:
                groups[f"{server_id}/{group}"] = returns_of(returns, present)
    return EvaluationResult(
        run=folder.path.resolve().name,
        assignment=experiment.assignment,
        seeds=tuple(e.seed or 0 for e in episodes),
        num_steps=tuple(e.num_steps for e in episodes),
        episode_returns=returns,
        servers=servers,
        agents={agent: returns_of(returns, [agent]) for agent in agents},
        groups=groups,
        roles={role: returns_of(returns, theirs) for role, theirs in roles_by_name(agents).items()},
        everybody=returns_of(returns, agents),
        replaced=dict(replaced),
        episode_metrics=values,
        metrics=_metrics(values, experiment),
    )


def _metrics(values: Metrics, experiment: Experiment) -> dict[str, Returns]:
    """Returns the statistics of each metric: of whole episodes, and of each server's agents."""
    found = {}
    for name, by_agent in values.items():
        is_asked = name in (*experiment.config.simulation.metrics, TRUNCATED)
        if COMMON in by_agent:
            found[name] = returns_of(by_agent, [COMMON], is_metric=is_asked)
        for server_id, plan in experiment.servers.items():
            if ours := [agent for agent in plan.agents if agent in by_agent]:
                found[f"{name}/{server_id}"] = returns_of(by_agent, ours, is_metric=is_asked)
    return found


def _algorithm(plan: ServerPlan, server: ServerConfig, checkpoint: str) -> str:
    """Returns the algorithm that trained a server's policies, or the fixed one that played."""
    if checkpoint and server.algorithm == OWN_PROCESS:
        return algorithm_label(OWN_PROCESS, server.command)  # only that process reads its files
    return Checkpoint.open(Path(checkpoint)).algorithm if checkpoint else plan.algorithm


def _shown(path: Path, folder: RunDirectory) -> str:
    """Returns a checkpoint's resolved path, relative to the run if it is inside the run.

    The run can be moved later, and if it continues, another checkpoint is the last.
    """
    root, path = folder.path.resolve(), path.resolve()
    return str(path.relative_to(root) if path.is_relative_to(root) else path)


def _written(result: EvaluationResult, folder: RunDirectory) -> EvaluationResult:
    now = datetime.now()
    path = folder.new_evaluation(now)
    about = {
        "format": FORMAT,
        "written_at": now.isoformat(timespec="seconds"),
        "versions": software_versions(),
    }
    write_json(path, {**about, **result.to_dict()})
    return dataclasses.replace(result, path=path)
