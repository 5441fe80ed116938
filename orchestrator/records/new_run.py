"""A new run's directory, with all that is known before it starts: config, plan, versions."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from muxrl.orchestrator.config import Experiment, to_yaml
from muxrl.orchestrator.records.run_directory import RunDirectory


def make_folder(experiment: Experiment, run_dir: Path | None = None) -> RunDirectory:
    """Makes a run's directory and writes these files.

    Args:
        experiment: resolved.
        run_dir: which must not exist yet; None: a new one under the experiment's `runs_dir`.

    Raises:
        OSError: it exists, or cannot be made.
    """
    if run_dir is None:
        root = Path(experiment.config.runs_dir)
        folder = RunDirectory.create(root, experiment.config.name, datetime.now())
    else:
        folder = RunDirectory.create_at(run_dir)
    folder.write_config(to_yaml(experiment.config))
    folder.write_versions()
    folder.write_plan(
        {
            "servers": {
                server_id: {
                    "algorithm": plan.algorithm,
                    "agents": list(plan.agents),
                    "groups": {g: list(m) for g, m in plan.groups.items()},
                    "learns": server_id not in experiment.fixed_servers,
                    "seed": plan.seed,
                }
                for server_id, plan in experiment.servers.items()
            },
            "assignment": experiment.assignment,
            "seed": experiment.config.seed,
        }
    )
    return folder
