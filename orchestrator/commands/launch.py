"""``muxrl launch``: start the servers and simulations of an experiment.

Starts the servers and simulations of an experiment, and restarts those that fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from muxrl.orchestrator.commands.command import command
from muxrl.orchestrator.commands.experiment import prepared, run_prepared
from muxrl.orchestrator.errors import ConfigError


@command(
    is_long=True,
    says="always",
    usage="muxrl launch CONFIG [key=value ...] [options]\n"
    "       muxrl launch --resume RUN_DIR [key=value ...] [options]",
)
def launch(
    config: str | None = None,
    overrides: Sequence[str] = (),
    *,
    run_dir: Path | None = None,
    resume: str | None = None,
    address: str | None = None,
    no_progress: bool = False,
) -> int:
    """Runs an experiment, or goes on with a run, and returns the exit code.

    Args:
        config (CONFIG): a YAML file, or the name of a packaged config, such as tag.
        overrides (key=value): replaces a value of the config, such as seed=3 or
            servers.qmix.settings.lr=0.001.
        run_dir (DIR): directory for the results; default: a new one.
        resume (RUN_DIR): continue a run that has ended, from its newest checkpoint; if RUN_DIR is
            the URI of a copy (storage_path), the copy is downloaded first, to --run-dir.
        address: Ray cluster to join, such as "auto".
        no_progress: show no live table.
    """
    from muxrl.orchestrator.config import load_config
    from muxrl.orchestrator.supervise.fork_server import early

    folder = None
    if resume is not None:
        from muxrl.orchestrator.launch.resuming import load_resumed_config, open_resumed

        if run_dir is not None and "://" not in resume:
            raise ConfigError(["--run-dir is for a new run; --resume names the run's directory"])
        folder = open_resumed(resume, run_dir)
        loaded = load_resumed_config(folder, [*([config] if config else []), *overrides])
    elif config is None:
        raise ConfigError(["needs a CONFIG, or --resume RUN_DIR"])
    else:
        loaded = load_config(config, overrides)
    loaded.address = address or loaded.address
    with early(loaded.address):
        experiment = prepared(loaded, needs_stop=True)
        return run_prepared(experiment, run_dir, folder, show_progress=not no_progress)
