"""A finished run, evaluated again: its servers frozen, on episodes that train nothing.

::

    result = evaluate_run(Path("runs/chase-20261121-101500"), num_episodes=200)
    result.servers["qmix"].returns.mean

Every server of the run is served again from its checkpoint, by an algorithm that cannot learn, and
all of them play the episodes of the given seeds together. Weights stay the same bit by bit, and the
same call gives the same returns if the simulation is deterministic for a seed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from muxrl.client.adapters import Simulation
from muxrl.client.adapters.simulation import COMMON, SimulationError
from muxrl.client.env_loop import EpisodeResult
from muxrl.orchestrator.config import Experiment, ExperimentConfig, prepare
from muxrl.orchestrator.config.checks import EXTERNAL
from muxrl.orchestrator.config.parameters import of_evaluations
from muxrl.orchestrator.config.schema import SimulationConfig
from muxrl.orchestrator.errors import CannotEvaluate, ConfigError, NotARunDirectory
from muxrl.orchestrator.evaluations.evaluated import (
    EvaluatedServer,
    EvaluationResult,
    Returns,
    returns_of,
    roles_of,
)
from muxrl.orchestrator.evaluations.recording import RENDER_MODE, Filmed, write_json_lines
from muxrl.orchestrator.launch.in_process import serve_experiment
from muxrl.orchestrator.records.played import ParquetFile, Recorded
from muxrl.orchestrator.records.rows import Metrics
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.records.run_status import read_status
from muxrl.orchestrator.storage.checkpoints import CheckpointFolder
from muxrl.orchestrator.storage.json_files import write_json
from muxrl.orchestrator.storage.versions import software_versions
from muxrl.orchestrator.supervise.episodes import (
    make_copy,
    metrics_by_name,
    num_evaluation_envs,
    play_episodes,
    returns_by_agent,
)
from muxrl.orchestrator.user_modules import add_user_folders
from muxrl.protocol.suggestions import listed, similar_or_known
from muxrl.servers.algorithms.registry import find_entry
from muxrl.servers.checkpoints.checkpoint import Checkpoint
from muxrl.servers.config import EXTERNAL as OWN_PROCESS
from muxrl.servers.config import ServerConfig, algorithm_label
from muxrl.servers.fixed_names import POOL
from muxrl.servers.fixed_policies import find_fixed
from muxrl.servers.setting_values import AlgorithmProblem

RANDOM = "random"
"""Stands, in `replace`, for uniformly random actions."""
_SCRIPT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*").fullmatch

_FORMAT = 2


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
        run: its directory.
        num_episodes: how many.
        seed: of the first episode's reset; the next ones count on. None: the run's own
            ``evaluation.seed``, so that its final evaluation met the same episodes.
        should_explore: whether stochastic policies are sampled as in training, or take their
            likeliest action; None: as in the run's own evaluations. Value-based ones are greedy
            in any case.
        checkpoint: name of the folder under the run's ``checkpoints``.
        replace: server to what plays its agents instead: "random", a function as
            "package.module:name" (see SCRIPTED), or the folder of another
            checkpoint that fits them.
        parameters: of `simulation.parameters`, those that are to be others than in the run's own
            evaluations.
        should_write: whether the result is written to the run's ``evaluations``.
        record: a new file for what each agent saw, did and earned, ``.parquet`` or else JSON, an
            object a line; see `muxrl.orchestrator.records.played`.
        video: a new folder for an animated picture of each episode; see `Filmed`.

    Raises:
        CannotEvaluate: there is no such run or checkpoint, its simulation is external, or
            it is to be filmed and gives no pictures.
        FileExistsError: of `record` or `video`.
        ConfigError: its config does not fit this muxrl, the simulation, or the checkpoints.
        ServerProblem: a server could not be started.
        SimulationFailed: the simulation raised.
        OSError: the result could not be written.
    """
    if num_episodes < 1:
        raise CannotEvaluate(f"the number of episodes is {num_episodes}, must be at least 1")
    folder, config = read_run(Path(run))
    replaced = dict(replace or {})
    for server_id in replaced:
        if server_id not in config.servers:
            hint = similar_or_known(server_id, config.servers, "its servers are")
            raise CannotEvaluate(
                f"run {folder.name!r} has no server {server_id!r} to replace{hint}"
            )
    if should_explore is None:
        should_explore = config.evaluation.should_explore
    first_seed = config.evaluation.seed if seed is None else seed
    fixed = {**config.evaluation.parameters, **(parameters or {})}
    frozen = dataclasses.replace(
        config,
        evaluation=dataclasses.replace(config.evaluation, parameters=fixed),
        seed=first_seed,  # of actions that are drawn, too
        servers=_frozen(folder, config, checkpoint, replaced, should_explore),
    )
    experiment = _going_on(_prepared(frozen, folder), folder, checkpoint)
    seeds = tuple(range(first_seed, first_seed + num_episodes))
    for path in (record, video):
        if path is not None and path.exists():
            raise FileExistsError(f"{path} exists already; give another name")
    if video is not None:
        video.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        file: TextIO | ParquetFile | None = None
        if record is not None and record.suffix == ".parquet":
            file = stack.enter_context(contextlib.closing(ParquetFile(record)))
        elif record is not None:
            file = stack.enter_context(record.open("x", encoding="utf-8"))
        episodes = _play(experiment, seeds, should_explore, file, video)
    if not any(episode.returns for episode in episodes):
        raise CannotEvaluate(
            f"all {num_episodes} episodes ended at a bad value (simulation.on_bad_value)"
        )
    result = _result(folder, config, experiment, episodes, replaced, should_explore)
    return _written(result, folder) if should_write else result


def _prepared(frozen: ExperimentConfig, folder: RunDirectory) -> Experiment:
    """Resolves the experiment; modules are found where the run was launched, too.

    Raises:
        ConfigError: as `prepare`; of a module that is absent it says where it was looked for.
    """
    folders = _folders(folder)
    try:
        return prepare(frozen, needs_stop=False)
    except ConfigError as error:
        if not any(isinstance(cause, ModuleNotFoundError) for cause in _causes(error)):
            raise
        gone = [path for path in folders if not Path(path).is_dir()]
        launched = (
            f"the run was launched in {listed(folders)}"
            if folders
            else ("where the run was launched was not written down")
        )
        raise ConfigError(
            [
                *error.problems,
                f"{launched}{' (not there any more)' if gone else ''}; go to the folder that has "
                "the module",
            ],
            str(folder.path),
        ) from error


def _going_on(experiment: Experiment, folder: RunDirectory, checkpoint: str) -> Experiment:
    """Has servers that are processes of their own go on from a checkpoint; none of them trains."""
    servers = {
        s: dataclasses.replace(plan, resume_from=str(_checkpoint(folder, s, checkpoint).absolute()))
        if plan.algorithm == OWN_PROCESS
        else plan
        for s, plan in experiment.servers.items()
    }
    return dataclasses.replace(experiment, servers=servers)


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def read_run(run: Path) -> tuple[RunDirectory, ExperimentConfig]:
    """Opens a run whose simulation muxrl makes.

    Raises:
        CannotEvaluate: it is none, never began, or its simulation is external.
    """
    try:
        folder = RunDirectory.open(run)
        config = folder.read_config()
    except NotARunDirectory as error:
        raise CannotEvaluate(str(error)) from error
    except FileNotFoundError as error:
        raise CannotEvaluate(f"run {str(run)!r} has no config.yaml: it never began") from error
    if config.simulation.env == EXTERNAL:
        raise CannotEvaluate(
            f"the simulation of run {folder.name!r} is external, so muxrl cannot start it; serve "
            "the run's checkpoints with the algorithm FROZEN and connect your simulation"
        )
    add_user_folders(_folders(folder))
    return folder, config


def _folders(folder: RunDirectory) -> list[str]:
    """Returns where the run was launched, which may have the simulation's module."""
    status = read_status(folder)
    return list(status.folders) if status else []


def _frozen(
    folder: RunDirectory,
    config: ExperimentConfig,
    checkpoint: str,
    replaced: Mapping[str, str],
    should_explore: bool,
) -> dict[str, ServerConfig]:
    """Returns the servers of an experiment, with all that learned frozen."""
    servers: dict[str, ServerConfig] = {}
    problems: list[str] = []
    for server_id, server in config.servers.items():
        instead = replaced.get(server_id)
        try:
            if instead == RANDOM:
                servers[server_id] = ServerConfig(algorithm="RANDOM", agents=server.agents)
            elif instead is not None and _SCRIPT(instead) and not Path(instead).exists():
                servers[server_id] = ServerConfig(
                    algorithm="SCRIPTED",
                    agents=server.agents,
                    label=instead.partition(":")[2],
                    settings={"policy": instead},
                )
            elif instead is not None:
                servers[server_id] = _other(server, Path(instead), should_explore)
            elif find_fixed(server.algorithm) is not None:
                servers[server_id] = dataclasses.replace(
                    on_free_port(server),
                    label=label_of(server),
                    settings=_without_run(server, config, folder, checkpoint),
                )
            elif server.algorithm == OWN_PROCESS:
                servers[server_id] = on_free_port(server) if server.command else server
            else:
                path = _checkpoint(folder, server_id, checkpoint)
                servers[server_id] = freeze(
                    server, path, server.algorithm, should_explore=should_explore
                )
        except (AlgorithmProblem, CannotEvaluate) as error:
            problems.append(f"server {server_id!r}: {error}")
    if problems:
        raise CannotEvaluate("; ".join(problems))
    return servers


def _without_run(
    server: ServerConfig, config: ExperimentConfig, folder: RunDirectory, checkpoint: str
) -> dict[str, Any]:
    """Returns a fixed server's settings; what a run brings to a pool is opened from checkpoints."""
    if server.algorithm.upper() != POOL:
        return server.settings
    checkpoints = CheckpointFolder(folder.checkpoints)
    kept = [str(n) for n in checkpoints.snapshots(config.checkpoint.keep_every_env_steps)]
    members: dict[str, Any] = {}
    for entry, member in server.settings["members"].items():
        source = member.get("live", member.get("snapshots"))
        if source is None:
            members[entry] = member
            continue
        names = kept[-member.get("last", 5) :] if "snapshots" in member else []
        for name in names or [checkpoint]:
            members[f"{entry}.{name}" if names else entry] = {
                "algorithm": "FROZEN",
                "checkpoint": str(_checkpoint(folder, source, name).absolute()),
                "policies": member.get("policies", {}),
                "should_explore": server.settings.get("should_explore", True),
                "weight": member.get("weight", 1.0) / max(1, len(names)),
            }
    return {**server.settings, "members": members}


def _checkpoint(folder: RunDirectory, server_id: str, name: str) -> Path:
    checkpoints = CheckpointFolder(folder.checkpoints)
    path = checkpoints.of_server(server_id, name)
    if path is None:
        raise CannotEvaluate(
            f"run {folder.name!r} has no checkpoint {name!r} of it; "
            f"{checkpoints.saved_text(server_id)}"
        )
    return path


def _other(server: ServerConfig, path: Path, should_explore: bool) -> ServerConfig:
    """Returns a server that plays from a checkpoint of another one, with that one's groups."""
    about = Checkpoint.open(path)
    return dataclasses.replace(
        freeze(server, path, about.algorithm, should_explore=should_explore),
        label=algorithm_label(about.algorithm or ""),
        groups=about.about.get("groups", server.groups),
        policies={},
    )


def _play(
    experiment: Experiment,
    seeds: Sequence[int],
    should_explore: bool,
    record: TextIO | ParquetFile | None,
    video: Path | None,
) -> list[EpisodeResult]:
    # Fixed policies have it in their settings.
    own = {s for s, plan in experiment.servers.items() if plan.algorithm == OWN_PROCESS}
    explores = dict.fromkeys(own, should_explore)
    with serve_experiment(experiment) as served, served.client() as client:
        config = experiment.config
        num_envs = num_evaluation_envs(config.simulation, config.evaluation, len(seeds))
        simulations: list[Simulation] = []
        try:
            for number in range(num_envs):
                simulations.append(_simulation(experiment, number, record, video))
            return play_episodes(
                client,
                simulations,
                seeds,
                explores,
                on_bad_value=config.simulation.on_bad_value,
                metrics=config.simulation.metrics,
                parameters=of_evaluations(config),
            )
        finally:
            for simulation in simulations:
                simulation.close()


def _simulation(
    experiment: Experiment, number: int, record: TextIO | ParquetFile | None, video: Path | None
) -> Simulation:
    config = experiment.config.simulation
    if video is None:
        simulation = make_copy(config, config.num_processes, number)
    else:
        simulation = filmed_copy(config, number, video)
    if record is None:
        return simulation
    if isinstance(record, ParquetFile):
        return Recorded(simulation, partial(record.write, simulation))
    return Recorded(simulation, lambda rows, _: write_json_lines(record, rows))


def filmed_copy(config: SimulationConfig, number: int, video: Path) -> Simulation:
    """Makes an environment that is filmed.

    Raises:
        CannotEvaluate: it cannot be.
    """
    try:
        made = make_copy(config, config.num_processes, number, render_mode=RENDER_MODE)
    except SimulationError as error:
        raise CannotEvaluate(f"the environment cannot be filmed: {error}") from error
    return Filmed(made, video)


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
        rule, path = "fixed", None
        if plan.algorithm == "FROZEN":
            rule = "sampled" if plan.settings["should_explore"] else "greedy"
            path = Path(plan.settings["checkpoint"])
        elif plan.algorithm == OWN_PROCESS:
            rule = "sampled" if should_explore else "greedy"
            path = Path(plan.resume_from)
        servers[server_id] = EvaluatedServer(
            algorithm=_trained_by(config, server_id, path) or plan.algorithm,
            rule=rule,
            checkpoint="" if path is None else _shown(path, folder),
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
        roles={role: returns_of(returns, theirs) for role, theirs in roles_of(agents).items()},
        everybody=returns_of(returns, agents),
        replaced=dict(replaced),
        episode_metrics=values,
        metrics=_metrics(values, experiment),
    )


def _metrics(values: Metrics, experiment: Experiment) -> dict[str, Returns]:
    """Returns the statistics of each metric, of whole episodes and of each server's agents."""
    found = {}
    for name, by_agent in values.items():
        if COMMON in by_agent:
            found[name] = returns_of(by_agent, [COMMON])
        for server_id, plan in experiment.servers.items():
            if ours := [agent for agent in plan.agents if agent in by_agent]:
                found[f"{name}/{server_id}"] = returns_of(by_agent, ours)
    return found


def _trained_by(config: ExperimentConfig, server_id: str, checkpoint: Path | None) -> str | None:
    """Returns the algorithm whose policies played, None if none was learned."""
    if checkpoint is None:
        return None
    server = config.servers[server_id]
    if server.algorithm == OWN_PROCESS:
        return OWN_PROCESS  # whose files are its own
    written = Checkpoint.open(checkpoint).algorithm
    return written or (None if find_fixed(server.algorithm) else server.algorithm.upper())


def _shown(path: Path, folder: RunDirectory) -> str:
    """Returns a checkpoint's path, relative to the run's if it is in there: a run can be moved."""
    root = folder.path.absolute()
    return str(path.relative_to(root) if path.is_relative_to(root) else path)


def _written(result: EvaluationResult, folder: RunDirectory) -> EvaluationResult:
    now = datetime.now()
    path = folder.new_evaluation(now)
    about = {
        "format": _FORMAT,
        "written_at": now.isoformat(timespec="seconds"),
        "versions": software_versions(),
    }
    write_json(path, {**about, **result.to_dict()})
    return dataclasses.replace(result, path=path)


def freeze(
    server: ServerConfig, checkpoint: Path, trained_by: str | None, *, should_explore: bool
) -> ServerConfig:
    """Returns a server that acts for the same agents with the policies of a checkpoint.

    Args:
        server: the one that learned.
        checkpoint: its folder.
        trained_by: the algorithm, None if unknown.
        should_explore: whether stochastic policies are sampled; value-based ones are greedy in
            any case.

    Raises:
        AlgorithmProblem: there is no such algorithm.
    """
    can_sample = trained_by is None or find_entry(trained_by).samples_actions
    return ServerConfig(
        algorithm="FROZEN",
        agents=server.agents,
        label=label_of(server),
        policies=server.policies,
        groups=server.groups,
        settings={
            "checkpoint": str(checkpoint.absolute()),
            "should_explore": should_explore and can_sample,
        },
        use_global_state=server.use_global_state,
        late_members=server.late_members,
        resources=server.resources,
        limits=server.limits,
    )


def on_free_port(server: ServerConfig) -> ServerConfig:
    """Returns a server with fixed policies as muxrl serves it again, for itself alone.

    The run's own port may be taken by the next run, and no one else should connect.
    """
    return dataclasses.replace(server, host="127.0.0.1", port=0, token="")


def label_of(server: ServerConfig) -> str:
    """Returns what stands for a server in assignments: the algorithm that trained its policies.

    Raises:
        AlgorithmProblem: its checkpoint cannot be read.
    """
    if server.label or server.algorithm.upper() != "FROZEN":
        return server.label or algorithm_label(server.algorithm)
    trained_by = Checkpoint.open(Path(server.settings.get("checkpoint", ""))).algorithm
    return algorithm_label(trained_by or "")
