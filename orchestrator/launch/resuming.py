"""Resumes a run: finds its newest checkpoint, and applies the changes that its config allows."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, is_dataclass, replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import get_origin

import yaml  # type: ignore[import-untyped]

from muxrl.orchestrator.config import (
    Experiment,
    ExperimentConfig,
    Overrides,
    load_config,
    to_yaml,
)
from muxrl.orchestrator.config.merge import diff
from muxrl.orchestrator.errors import CannotResume, RunIsRunning
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.records.run_status import read_status
from muxrl.orchestrator.storage.checkpoints import (
    CheckpointFolder,
    Manifest,
    find_whole,
)
from muxrl.orchestrator.storage.json_files import write_text
from muxrl.orchestrator.storage.remote_copy import fetch
from muxrl.orchestrator.supervise.simulation_process import EpisodeSeeds
from muxrl.orchestrator.user_modules import add_user_folders
from muxrl.protocol.suggestions import listed
from muxrl.servers.checkpoints.checkpoint import ABOUT_FILE, SET_ASIDE
from muxrl.servers.checkpoints.folder_lock import held
from muxrl.servers.checkpoints.integrity import MANIFEST_FILE
from muxrl.servers.declared import keys_of, of_mapping, use_of

_COPY_S = 30.0
"""A manifest whose file is so much older or newer than its own date has been copied."""
_BEGAN_WITH = ("initialize_from", "initialize_policies", "initialize_only")
"""Keys of a server that a resumed run does not use, as it goes on from later weights."""


@contextlib.contextmanager
def locked(folder: RunDirectory) -> Iterator[None]:
    """Keeps other processes from running in this directory while the ``with`` block lasts.

    Raises:
        RunIsRunning: another process runs in it.
        OSError: the lock file cannot be made.
    """

    def taken() -> RunIsRunning:
        status = read_status(folder)
        who = f" (pid {status.pid} on {status.host})" if status else ""
        return RunIsRunning(
            f"{folder.path} belongs to a run that is going on{who}; wait for its end, or end it "
            "with Ctrl-C or SIGTERM"
        )

    with held(folder.lock, taken):
        yield


def open_resumed(given: str | Path, place: Path | None = None) -> RunDirectory:
    """Opens the directory of a run that is to continue.

    Args:
        given: the directory's path, or the URI of its copy, which is fetched.
        place: see `fetch`.

    Raises:
        NotARunDirectory, OtherFormat: it is no directory of a run, or of another format.
        CannotResume: see `fetch`.
    """
    is_remote = "://" in str(given)
    return RunDirectory.open(fetch(str(given), place) if is_remote else Path(given))


def load_resumed_config(folder: RunDirectory, overrides: Overrides = ()) -> ExperimentConfig:
    """Returns the config with which a run continues.

    Args:
        folder: the run's directory.
        overrides: changes of the run's config.

    Raises:
        ConfigError: the overrides do not fit, or a token, which is never written down, is missing.
        CannotResume: an override changes what has to stay, or nothing is left to do.
        RunIsRunning: another process runs in the directory.
    """
    with locked(folder):  # while the run goes on, its config and status may still change
        pass
    config = load_own_config(folder, overrides)
    path = folder.path / "config.yaml"
    before = _as_it_scaled(folder.read_config(), path)
    use = {key: use_of(ExperimentConfig, key.split(".")) for key in diff(before, config)}
    if changed := [key for key in use if not use[key].may_change]:
        raise CannotResume(
            f"a resumed run cannot change {', '.join(changed)}: all counts and results of a run "
            "belong to one task. Start a new run with that change, and with this run's policies: "
            f"servers.{next(iter(config.servers))}.initialize_from={folder.path}; optimizers, "
            "replays and schedules (epsilon, lr) begin anew, so give shorter schedules. A resumed "
            f"run may change: {', '.join(_keys_that_may_change())}"
        )
    status = read_status(folder)
    if status is not None and status.state == "done" and config.stop == before.stop:
        steps = config.stop.env_steps
        is_short = steps is not None and status.env_steps < steps  # something else ended it
        ends = [
            f"stop.{key}"
            for key, value in asdict(config.stop).items()
            if value and not (key == "env_steps" and is_short)
        ]
        raise CannotResume(
            f"{folder.path} has reached its stop condition, at {status.env_steps:,} env steps; "
            f"to continue it, raise {' or '.join(ends) or 'stop.env_steps'}"
        )
    for server in config.servers.values():
        server.initialize_from = ""  # these weights are not needed any more, and may be gone
        server.initialize_policies, server.initialize_only = {}, "all"
    return config


def load_own_config(folder: RunDirectory, overrides: Overrides = ()) -> ExperimentConfig:
    """Returns the config with which a run was launched, changed by overrides.

    Raises:
        ConfigError: the overrides do not fit, or a token, which is never written down, is missing.
        CannotResume: there is no config: the run never began.
    """
    path = folder.path / "config.yaml"
    if not path.is_file():
        raise CannotResume(f"{folder.path} has no config.yaml: the run never began")
    status = read_status(folder)
    add_user_folders(status.folders if status else ())
    return _as_it_scaled(load_config(path, overrides), path)


def _as_it_scaled(config: ExperimentConfig, written: Path) -> ExperimentConfig:
    for server_id, keys in yaml.safe_load(written.read_text(encoding="utf-8"))["servers"].items():
        if "scale_observations" not in keys:  # the run is older than this key, and scaled nothing
            config.servers[server_id].scale_observations = "none"
    return config


def find_checkpoint(folder: RunDirectory) -> tuple[Path, Manifest, list[str]]:
    """Returns a run's newest whole checkpoint, its manifest, and what is wrong with newer ones.

    Raises:
        CannotResume: there is no whole checkpoint.
    """
    checkpoints = CheckpointFolder(folder.checkpoints)
    checkpoints.restore()
    found, problems = find_whole(checkpoints)
    if found is not None:
        return *found, problems
    if problems:
        raise CannotResume(
            f"{folder.path} has no whole checkpoint: {'; '.join(problems)}; start a new run"
        )
    raise CannotResume(
        f"{folder.path} has no checkpoint to continue from; a run writes one every "
        "checkpoint.interval_s seconds and at its end (checkpoint.at_end). Start a new run"
    )


def how_to_resume(folder: RunDirectory, when: str = "once the cause is fixed, ") -> str:
    """Returns a clause on how to resume a run, or a trial, that has ended early."""
    resume = f"launch --resume {folder.path}"
    if folder.sweep is not None:
        resume = f"sweep {folder.sweep} --resume"
    try:
        _, manifest, _ = find_checkpoint(folder)
    except (CannotResume, OSError):
        again = f"'muxrl {resume}' starts it again from the beginning"
        return f"it has no whole checkpoint, so {again if folder.sweep else 'it cannot be resumed'}"
    at = f"its checkpoint at {manifest.env_steps:,} env steps"
    return f"{when}'muxrl {resume}' continues from {at}"


def resume_at_checkpoint(
    experiment: Experiment, folder: RunDirectory, say: Callable[[str], object]
) -> tuple[Experiment, Manifest]:
    """Resumes a run, which this process has locked, at its newest whole checkpoint.

    Later checkpoints and recorded episodes are set aside, and the versions of this process's
    software are written.

    Args:
        experiment: resolved from the config with which the run continues.
        folder: the run's directory.
        say: called with sentences on where the run continues, and what the checkpoint lacks.

    Returns:
        The experiment with servers that continue from the checkpoint, and its manifest.

    Raises:
        CannotResume: there is no whole checkpoint.
        OSError: the run directory cannot be written to.
    """
    place, manifest, damage = find_checkpoint(folder)
    for problem in damage:
        say(f"a newer checkpoint cannot be used: {problem}")
    say(f"resuming at {manifest.env_steps:,} env steps from {place}")
    for sentence in find_missing_replays(place, manifest):
        say(sentence)
    CheckpointFolder(folder.checkpoints).set_aside(manifest.env_steps)
    set_episodes_aside(folder, place, manifest, experiment.config.seed)
    folder.write_versions(manifest.env_steps, env=experiment.config.simulation.env)
    return resumed_experiment(experiment, place, manifest), manifest


def set_episodes_aside(folder: RunDirectory, place: Path, manifest: Manifest, seed: int) -> None:
    """Renames the recorded episodes that ended after a checkpoint to ``SEED.parquet.unused``.

    Args:
        folder: the run's directory.
        place: the checkpoint's folder.
        manifest: the checkpoint's manifest.
        seed: the run's seed.

    Raises:
        OSError: a file cannot be renamed.
    """
    written = (place / MANIFEST_FILE).stat().st_mtime
    is_a_copy = abs(written - datetime.fromisoformat(manifest.written_at).timestamp()) > _COPY_S
    files = sorted(folder.episodes.glob("*/*.parquet"))
    if is_a_copy:  # the times of copied files say nothing, but seeds do
        unknown = {(path.parent.name, path.stem): path for path in files}
        for name, num in manifest.num_episodes_begun.items():
            ours = {stem for process, stem in unknown if process == name}
            for one in islice(EpisodeSeeds.of_process(seed, name), num):
                if not ours:
                    break
                if str(one) in ours:
                    ours.remove(str(one))
                    del unknown[name, str(one)]
        later = list(unknown.values())
    else:
        later = [path for path in files if path.stat().st_mtime > written]
    for path in later:
        path.replace(path.with_name(f"{path.name}{SET_ASIDE}"))


def resumed_experiment(experiment: Experiment, place: Path, manifest: Manifest) -> Experiment:
    """Returns the experiment with servers that continue from a checkpoint.

    Args:
        experiment: resolved from the config with which the run continues.
        place: the checkpoint's folder.
        manifest: the checkpoint's manifest.

    Raises:
        CannotResume: a server is not in the checkpoint.
    """
    if missing := [s for s in experiment.servers if s not in manifest.servers]:
        raise CannotResume(
            f"{place} has no weights of {listed(missing)}: a server that a shadow has replaced "
            "cannot return"
        )
    servers = {
        server_id: replace(plan, resume_from=str(place / server_id), initialize_from="")
        if manifest.servers[server_id].files
        else plan
        for server_id, plan in experiment.servers.items()
    }
    return replace(experiment, servers=servers)


def write_resumed_config(folder: RunDirectory, config: ExperimentConfig, env_steps: int) -> None:
    """Writes the config with which a run continues, with the run's first `initialize_from` keys.

    If the config has changed, the former one is kept as ``config-until-N.yaml``. What was played
    after the checkpoint does not count any more, so configs that came after it are removed.

    Args:
        folder: the run's directory.
        config: the config that `load_resumed_config` has returned.
        env_steps: env steps of the checkpoint from which the run continues.

    Raises:
        OSError: a file cannot be written.
    """
    before = folder.read_config()
    servers = {
        name: replace(server, **{key: getattr(before.servers[name], key) for key in _BEGAN_WITH})
        for name, server in config.servers.items()
    }
    now = to_yaml(replace(config, servers=servers))
    dropped = [path for until, path in folder.former_configs().items() if until >= env_steps]
    then = next(iter([*dropped, folder.path / "config.yaml"])).read_text(encoding="utf-8")
    kept = folder.former_config(env_steps)
    if now != then:
        write_text(kept, then)
    folder.write_config(now)
    for path in dropped:
        if path != kept or now == then:
            path.unlink()


def find_missing_replays(place: Path, manifest: Manifest) -> Iterator[str]:
    """Yields a sentence for each server whose replay is not in the checkpoint."""
    for server_id, server in manifest.servers.items():
        if ABOUT_FILE not in server.files:  # it has no replay, or writes files of another kind
            continue
        about = json.loads((place / server_id / ABOUT_FILE).read_text(encoding="utf-8"))
        if left_out := (about.get("replay") or {}).get("left_out"):
            yield (
                f"the replay of server {server_id!r} is not in the checkpoint ({left_out}); the "
                "server learns again once a new replay has enough samples"
            )


def _keys_that_may_change() -> Iterator[str]:
    for path, hint in keys_of(ExperimentConfig):
        may, around = (use_of(ExperimentConfig, p).may_change for p in (path, path[:-1]))
        if may and not around:
            inner = of_mapping(hint)
            is_mapping = is_dataclass(inner) or get_origin(inner) is dict
            yield ".".join(path).replace("NAME", "*") + ".*" * is_mapping
