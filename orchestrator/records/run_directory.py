"""The folder that holds all there is to know of a run.

::

    <name>-YYYYmmdd-HHMMSS/
    ├── config.yaml       the experiment as it was resolved
    ├── config-until-N.yaml  until it was resumed at N env steps, if it was another one
    ├── status.json       how the run stands, or how it ended
    ├── plan.json         which server has which agents, under which algorithm
    ├── versions.json     the software, and that of each earlier beginning of a resumed run
    ├── packages.txt      all packages, for `pip install -r`
    ├── servers.json      server_id -> host:port
    ├── summary.json/.md  the report
    ├── report.html       the same on one page, with picture, settings and versions
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
"""Of a run's records. A change of their files or columns that today's readers do not understand
makes it one more."""
TRIALS_FILE = "trials.jsonl"
_UNTIL = "config-until-"
LEAGUE_FILE = "league.yaml"
"""A folder with this file is a sweep's; its runs are in ``runs/``."""


@dataclass(frozen=True)
class RunDirectory(Folder):
    """Where everything of one run lies. Make one with `create`, read one back with `open`."""

    _INNER = ("logs", "metrics", "checkpoints", "plots", "tensorboard")

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """The run that was written to `path`.

        Raises:
            NotARunDirectory: there is no such folder, or it has no ``metrics`` in it.
            OtherFormat: a newer muxrl wrote it.
        """
        if not path.is_dir():
            raise NotARunDirectory(path, no_such_folder(path))
        if not (path / "metrics").is_dir():
            hint = "is it the parent of runs?"
            if (path / "trials.jsonl").is_file():
                hint = "it is a sweep's, which 'muxrl compare' shows; its runs are in 'runs'"
            elif (path / "checkpoints").is_dir():
                hint = (
                    "'muxrl serve' keeps the checkpoints of one server there, and FROZEN plays "
                    "them; runs are made by 'muxrl launch'"
                )
            raise NotARunDirectory(path, f"it has no folder 'metrics'; {hint}")
        with contextlib.suppress(OSError, ValueError):  # `read_plan` says what is wrong with it
            plan = msgspec.json.decode((path / "plan.json").read_bytes(), type=dict)
            # The first runs have none.
            if problem := format_problem(plan.get("format", 1), _FORMAT):
                raise OtherFormat(path, problem)
        return cls(path)

    @property
    def sweep(self) -> Path | None:
        """The directory of the sweep that the run is a trial of; None if of none."""
        above = self.path.resolve().parent.parent
        return above if (above / TRIALS_FILE).is_file() else None

    @property
    def logs(self) -> Path:
        """One file for each process."""
        return self.path / "logs"

    def log(self, process: str) -> Path:
        """The log file of a process: a server's id, ``simulation-0``, ``evaluation``, ``trial``."""
        return (self.logs / f"{process}.log").absolute()

    @property
    def lock(self) -> Path:
        """The file that the process which runs here holds."""
        return self.path / ".lock"

    @property
    def metrics(self) -> Path:
        """What `muxrl.orchestrator.records.metrics` writes."""
        return self.path / "metrics"

    @property
    def episodes(self) -> Path:
        """Recorded ones: a folder for each process with a file for each episode."""
        return self.path / "episodes"

    @property
    def checkpoints(self) -> Path:
        """The servers' checkpoints."""
        return self.path / "checkpoints"

    def new_evaluation(self, now: datetime) -> Path:
        """The path of a new file ``evaluations/YYYYmmdd-HHMMSS.json``, with ``-2``, ``-3``... added
        where two evaluations end in one second.

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
        """Returns what `write_config` saved; masked tokens come back as none.

        Raises:
            FileNotFoundError: it was not saved: the run never began.
            ConfigError: it is of another version of muxrl.
        """
        return from_yaml((self.path / "config.yaml").read_text(encoding="utf-8"), str(self.path))

    def former_config(self, env_steps: int) -> Path:
        """Where the config lies that held until the run was resumed at so many env steps."""
        return self.path / f"{_UNTIL}{env_steps}.yaml"

    def former_configs(self) -> dict[int, Path]:
        """Returns the configs of before, by the env steps until which each held, in order."""
        found = {int(p.stem.removeprefix(_UNTIL)): p for p in self.path.glob(f"{_UNTIL}*.yaml")}
        return dict(sorted(found.items()))

    def changed_settings(self) -> dict[str, str]:
        """Returns what was not so throughout, since the run was resumed with another config.

        Returns:
            By dotted key of what shapes results: "0.001 until 2,165 env steps, then 0.0003".

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
        """Saves which server has which agents as ``plan.json``.

        `plan` is ``{"servers": {server_id: {"algorithm", "agents", "groups", "learns", "shadow",
        "seed", "defaults"}}, "assignment", "seed", "metrics", "is_external"}``: see
        `PlannedServer`; the metrics are those that the config asks for.
        """
        write_json(self.path / "plan.json", {"format": _FORMAT, **plan})

    def note_promoted(self, experiment: Experiment) -> None:
        """Notes in ``plan.json`` which servers shadows have replaced, of a run that is resumed."""
        plan = json.loads((self.path / "plan.json").read_bytes())
        for server_id, server in experiment.config.servers.items():
            if server.replace_by:
                plan["servers"][server_id]["replaced_by"] = server.replace_by
                self.write_plan({**plan, "assignment": experiment.assignment})

    def read_plan(self) -> Plan:
        """Returns what `write_plan` saved.

        Raises:
            NotARunDirectory: it was not saved, or something else wrote the file.
        """
        try:
            return msgspec.json.decode((self.path / "plan.json").read_bytes(), type=Plan)
        except FileNotFoundError:
            problem = "it has no plan.json; did the run stop before its servers were planned?"
            raise NotARunDirectory(self.path, problem) from None
        except msgspec.ValidationError as error:
            raise NotARunDirectory(
                self.path,
                f"its plan.json has no servers, or one that has no algorithm or agents ({error})",
            ) from error
        except ValueError as error:
            raise NotARunDirectory(self.path, f"its plan.json is not JSON: {error}") from error

    def write_versions(self, resumed_at: int | None = None, *, env: str = "") -> dict[str, Any]:
        """Saves the software of this process as ``versions.json``, and returns what is in it; all
        its packages as ``packages.txt``.

        Args:
            resumed_at: env steps at which this process continues the run. What was written
                before then moves into the list ``earlier``, with its ``until_env_steps``.
            env: as the config names the environment.
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
        """Saves where the servers listen, ``server_id -> host:port``, as ``servers.json``."""
        write_json(self.path / "servers.json", addresses)

    def write_gateway(self, address: str) -> None:
        """Saves where external simulations find the gateway, as ``gateway.json``."""
        write_json(self.path / "gateway.json", {"address": address})


def make_folder(experiment: Experiment, run_dir: Path | None = None) -> RunDirectory:
    """Makes a run's directory and writes these files.

    Args:
        experiment: resolved.
        run_dir: which must not exist yet; None: a new one under the experiment's `runs_dir`.

    Raises:
        OSError: it exists, or cannot be made.
    """
    # Here, not above: who only reads a run needs nothing of servers.
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
