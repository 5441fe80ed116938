"""A finished run, opened to be played again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from muxrl.orchestrator.config import Experiment, ExperimentConfig, prepare
from muxrl.orchestrator.config.checks import EXTERNAL
from muxrl.orchestrator.errors import CannotEvaluate, ConfigError, NotARunDirectory
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.records.run_status import read_status
from muxrl.orchestrator.user_modules import add_user_folders
from muxrl.protocol.suggestions import listed


def open_run(run: Path) -> tuple[RunDirectory, ExperimentConfig]:
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


def prepared(frozen: ExperimentConfig, folder: RunDirectory) -> Experiment:
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


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__
