"""``muxrl reproduce``: launch a recorded run again, and say which software differs.

Launches the config of a run as a new run. Before that, prints in which software, environment and
source code this machine differs from the one that made the run.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from muxrl.orchestrator.commands.command import command
from muxrl.orchestrator.commands.experiment import run_prepared
from muxrl.orchestrator.commands.terminal import quiet
from muxrl.orchestrator.errors import ExitCode


@command(is_long=True, says="always")
def reproduce(
    run: Path,
    overrides: Sequence[str] = (),
    *,
    check: bool = False,
    run_dir: Path | None = None,
    no_progress: bool = False,
) -> int:
    """Says what differs, launches the run, and returns the exit code.

    Args:
        run (RUN): the directory of a run.
        overrides (key=value): replaces a value of the config; tokens, say, are not recorded.
        check: print what differs, and start nothing.
        run_dir (DIR): directory for the results; default: a new one.
        no_progress: show no live table.
    """
    from muxrl.orchestrator.config import prepare
    from muxrl.orchestrator.launch.resuming import load_own_config
    from muxrl.orchestrator.records.run_directory import RunDirectory
    from muxrl.orchestrator.storage.versions import changes_since
    from muxrl.orchestrator.supervise.fork_server import early

    folder = RunDirectory.open(run)
    config = load_own_config(folder, overrides)
    with contextlib.nullcontext() if check else early(config.address):
        with quiet():
            experiment = prepare(config)
        differing = [*changes_since(folder.path, config.simulation.env)]
        differing += [f"{key} was {value}" for key, value in folder.changed_settings().items()]
        for sentence in differing:
            sys.stdout.write(f"differs: {sentence}\n")
        if check:
            if not differing:
                sys.stdout.write(f"{run}: its software, environment and source are the same here\n")
            return ExitCode.FAILED if differing else ExitCode.DONE
        return run_prepared(experiment, run_dir, show_progress=not no_progress)
