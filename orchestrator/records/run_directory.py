"""The folder that holds all files of a run.

::

    <name>-YYYYmmdd-HHMMSS/
    ├── config.yaml       the resolved experiment
    ├── config-until-N.yaml  the former config, if the run was resumed with another at N env steps
    ├── status.json       how the run stands, or how it ended
    ├── plan.json         which server has which agents, and its algorithm
    ├── versions.json     the software; of a resumed run, also that of each earlier start
    ├── packages.txt      all packages, for `pip install -r`
    ├── servers.json      server_id -> host:port
    ├── summary.json/.md  the report
    ├── report.html       the report on one page, with picture, settings and versions
    ├── logs/             one file for each process
    ├── metrics/          one .jsonl for each server, joint.jsonl, evaluation.jsonl
    ├── checkpoints/
    ├── evaluations/      one .json for each `muxrl evaluate`; made by the first one
    ├── onnx/             a folder for each server; made by `muxrl export`
    ├── plots/            learning.png
    └── tensorboard/
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from muxrl.orchestrator.config import Experiment, ExperimentConfig, from_yaml, to_yaml
from muxrl.orchestrator.config.merge import flat
from muxrl.orchestrator.errors import NotARunDirectory, OtherFormat
from muxrl.orchestrator.records.plan import Plan
from muxrl.orchestrator.storage.folders import Folder, next_path, no_such_folder
from muxrl.orchestrator.storage.json_files import write_json, write_text
from muxrl.orchestrator.storage.versions import (
    PACKAGES_FILE,
    all_packages,
    read_versions,
    software_versions,
)
from muxrl.servers.checkpoints.formats import format_problem
from muxrl.servers.declared import use_of

_FORMAT = 1
"""Version of the format of a run's records; a change that today's readers do not understand
increases it."""
TRIALS_FILE = "trials.jsonl"
_UNTIL = "config-until-"
LEAGUE_FILE = "league.yaml"
"""Marks the folder of a sweep; the runs of the sweep are in ``runs/``."""


@dataclass(frozen=True)
class RunDirectory(Folder):
    """The folder of one run. Make one with `create`, find an existing one with `open`."""

    _INNER = ("logs", "metrics", "checkpoints", "plots", "tensorboard")

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """Returns the directory of the run that was written to `path`.

        Raises:
            NotARunDirectory: there is no such folder, or it has no folder ``metrics``.
            OtherFormat: a newer muxrl wrote it.
        """
        if not path.is_dir():
            raise NotARunDirectory(path, no_such_folder(path))
        if not (path / "metrics").is_dir():
            hint = "is it the parent of runs?"
            if (path / "trials.jsonl").is_file():
                hint = (
                    "it is the directory of a sweep: 'muxrl compare' shows what the sweep found, "
                    "and its runs are in the folder 'runs'"
                )
            elif (path / "checkpoints").is_dir():
                hint = (
                    "'muxrl serve' keeps the checkpoints of one server there, which the algorithm "
                    "FROZEN can play; directories of runs come from 'muxrl launch'"
                )
            raise NotARunDirectory(path, f"it has no folder 'metrics'; {hint}")
        with contextlib.suppress(OSError, ValueError):  # `read_plan` reports a broken plan
            plan = msgspec.json.decode((path / "plan.json").read_bytes(), type=dict)
            # Plans of the first runs have no format.
            if problem := format_problem(plan.get("format", 1), _FORMAT):
                raise OtherFormat(path, problem)
        return cls(path)

    @property
    def sweep(self) -> Path | None:
        """The directory of the sweep that the run is a trial of; None: of no sweep."""
        above = self.path.resolve().parent.parent
        return above if (above / TRIALS_FILE).is_file() else None

    @property
    def logs(self) -> Path:
        """The folder of the log files, one for each process."""
        return self.path / "logs"

    def log(self, process: str) -> Path:
        """Returns the log file of a process: a server's id, ``simulation-0``, ``trial``..."""
        return (self.logs / f"{process}.log").absolute()

    @property
    def lock(self) -> Path:
        """The file that the running process holds locked."""
        return self.path / ".lock"

    @property
    def metrics(self) -> Path:
        """The folder of the files that `muxrl.orchestrator.records.metrics` writes."""
        return self.path / "metrics"

    @property
    def episodes(self) -> Path:
        """The folder of recorded episodes: a folder for each process, a file for each episode."""
        return self.path / "episodes"

    @property
    def checkpoints(self) -> Path:
        """The folder of the servers' checkpoints."""
        return self.path / "checkpoints"

    def new_evaluation(self, now: datetime) -> Path:
        """Returns the path of a new file ``evaluations/YYYYmmdd-HHMMSS.json``.

        ``-2``, ``-3``... is added if several evaluations end in one second.

        Raises:
            OSError: the folder cannot be made.
        """
        folder = self.path / "evaluations"
        folder.mkdir(exist_ok=True)
        return next_path(folder, f"{now:%Y%m%d-%H%M%S}", ".json")

    def write_config(self, yaml_text: str) -> None:
        """Saves the resolved experiment as ``config.yaml``."""
        write_text(self.path / "config.yaml", yaml_text)

    def read_config(self) -> ExperimentConfig:
        """Returns the config that `write_config` saved, without tokens, which were masked.

        Raises:
            FileNotFoundError: no config was saved: the run never began.
            ConfigError: the config is of another version of muxrl.
        """
        return from_yaml((self.path / "config.yaml").read_text(encoding="utf-8"), str(self.path))

    def former_config(self, env_steps: int) -> Path:
        """Returns the path of the config that held until the run was resumed at these env steps."""
        return self.path / f"{_UNTIL}{env_steps}.yaml"

    def former_configs(self) -> dict[int, Path]:
        """Returns the paths of former configs, by the env steps until which each held, in order."""
        found = {int(p.stem.removeprefix(_UNTIL)): p for p in self.path.glob(f"{_UNTIL}*.yaml")}
        return dict(sorted(found.items()))

    def changed_settings(self) -> dict[str, str]:
        """Returns the settings that changed because the run was resumed with another config.

        Returns:
            By dotted key of a setting that shapes results: its values, such as "0.001 until 2,165
            env steps, then 0.0003".

        Raises:
            ConfigError: a config is of another version of muxrl.
        """
        former = self.former_configs()
        if not former:
            return {}
        files = [(path.read_text(encoding="utf-8"), str(path)) for path in former.values()]
        configs = [flat(one) for one in (*(from_yaml(*one) for one in files), self.read_config())]
        changed = {}
        for key in dict.fromkeys(key for one in configs for key in one):
            values = [one.get(key) for one in configs]
            use = use_of(ExperimentConfig, key.split("."))
            if use.may_change and use.shapes_results and any(v != values[0] for v in values):
                texts = ["its default" if value is None else str(value) for value in values]
                steps = zip(former, texts, texts[1:], strict=False)
                parts = [f"{was} until {n:,} env steps" for n, was, now in steps if was != now]
                changed[key] = ", ".join([*parts, f"then {texts[-1]}"])
        return changed

    def write_plan(self, plan: Mapping[str, Any]) -> None:
        """Saves the run's plan as ``plan.json``.

        `plan` is ``{"servers": {server_id: {"algorithm", "agents", "groups", "learns", "shadow",
        "seed", "defaults"}}, "assignment", "seed", "metrics", "is_external"}``: see
        `PlannedServer` and `Plan`.
        """
        write_json(self.path / "plan.json", {"format": _FORMAT, **plan})

    def note_promoted(self, experiment: Experiment) -> None:
        """Notes in ``plan.json`` which servers are replaced by shadows when a run is resumed."""
        plan = json.loads((self.path / "plan.json").read_bytes())
        for server_id, server in experiment.config.servers.items():
            if server.replace_by:
                plan["servers"][server_id]["replaced_by"] = server.replace_by
                self.write_plan({**plan, "assignment": experiment.assignment})

    def read_plan(self) -> Plan:
        """Returns the plan that `write_plan` saved.

        Raises:
            NotARunDirectory: no plan was saved, or the file is broken.
        """
        try:
            return msgspec.json.decode((self.path / "plan.json").read_bytes(), type=Plan)
        except FileNotFoundError:
            problem = "it has no plan.json; did the run stop before its servers were planned?"
            raise NotARunDirectory(self.path, problem) from None
        except msgspec.ValidationError as error:
            raise NotARunDirectory(
                self.path,
                f"its plan.json has no servers, or a server has no algorithm or agents ({error})",
            ) from error
        except ValueError as error:
            raise NotARunDirectory(self.path, f"its plan.json is not JSON: {error}") from error

    def write_versions(self, resumed_at: int | None = None, *, env: str = "") -> dict[str, Any]:
        """Saves this process's software as ``versions.json``, its packages as ``packages.txt``.

        Args:
            resumed_at: env steps at which this process continues the run; None: it begins one.
                The former content moves into the list ``earlier``, with its ``until_env_steps``.
            env: name of the environment in the config.

        Returns:
            The content of ``versions.json``.
        """
        versions: dict[str, Any] = software_versions(env)
        if resumed_at is not None:
            before = read_versions(self.path)
            earlier = before.pop("earlier", [])
            versions["earlier"] = [*earlier, {**before, "until_env_steps": resumed_at}]
        write_json(self.path / "versions.json", versions)
        write_text(self.path / PACKAGES_FILE, "\n".join([*all_packages(), ""]))
        return versions

    def write_addresses(self, addresses: Mapping[str, str]) -> None:
        """Saves the servers' addresses, ``server_id -> host:port``, as ``servers.json``."""
        write_json(self.path / "servers.json", addresses)

    def write_gateway(self, address: str) -> None:
        """Saves the gateway's address, for external simulations, as ``gateway.json``."""
        write_json(self.path / "gateway.json", {"address": address})


def make_folder(experiment: Experiment, run_dir: Path | None = None) -> RunDirectory:
    """Makes a run's directory, and writes config, versions and plan.

    Args:
        experiment: the resolved experiment.
        run_dir: the directory, which must not exist; None: a new one in the
            experiment's `runs_dir`.

    Raises:
        OSError: the directory exists, or cannot be made.
    """
    # Imported here: code that only reads a run should not load the servers' code.
    from muxrl.orchestrator.config.server_plan import default_settings

    config = experiment.config
    folder = RunDirectory.make(run_dir, Path(config.runs_dir), config.name)
    folder.write_config(to_yaml(experiment.config))
    folder.write_versions(env=experiment.config.simulation.env)
    folder.write_plan(
        {
            "servers": {
                server_id: {
                    "algorithm": plan.shown_algorithm,
                    "agents": list(plan.agents),
                    "groups": {g: list(m) for g, m in plan.groups.items()},
                    "learns": server_id not in experiment.fixed_servers,
                    "shadow": plan.shadow,
                    "seed": plan.seed,
                    "defaults": default_settings(plan),
                }
                for server_id, plan in experiment.servers.items()
            },
            "assignment": experiment.assignment,
            "seed": experiment.config.seed,
            "metrics": list(experiment.config.simulation.metrics),
            "is_external": experiment.is_external,
        }
    )
    return folder
