"""The figures that the files of `runs/` and `swept/` come to: compared with `expected.json`."""

from __future__ import annotations

import json
import math
import shutil
import tarfile
from pathlib import Path
from typing import Any

from muxrl import RunResult, SweepResult, compare
from muxrl.orchestrator.reports.report import combine_runs

PAST = Path(__file__).parent
RUNS = ("one", "two")


def unpack(folder: Path) -> None:
    """Copies the past's runs and its sweep into `folder`, with the checkpoints of run "one"."""
    for name in RUNS:
        shutil.copytree(PAST / "runs" / name, folder / name)
    shutil.copytree(PAST / "swept", folder / "swept")
    packed = folder / "one" / "checkpoints.tar.xz"
    with tarfile.open(packed) as archive:
        archive.extractall(folder / "one", filter="data")
    packed.unlink()


def figures(folder: Path) -> dict[str, Any]:
    """Returns what report, compare, listing and frames say of the runs in `folder`."""
    paths = [folder / name for name in RUNS]
    combine_runs(paths, folder / "report")
    compare([*paths]).write(folder / "compared")
    compare([folder / "swept"]).write(folder / "compared_sweep")
    run = RunResult.read(folder / "one")
    found = {
        "report": json.loads((folder / "report" / "summary.json").read_text()),
        "compared": json.loads((folder / "compared" / "comparison.json").read_text()),
        "compared sweep": json.loads((folder / "compared_sweep" / "comparison.json").read_text()),
        "frame": run.frame().to_dict("list"),
        "training": run.training().to_dict("list"),
        "metrics": run.metrics().to_dict("list"),
        "swept": SweepResult.read(folder / "swept").frame().to_dict("list"),
    }
    return {key: _plain(value, folder) for key, value in found.items()}


def _plain(value: Any, folder: Path) -> Any:
    """Returns JSON's own types: no paths of this machine, NaN as None."""
    if isinstance(value, dict):
        return {str(key): _plain(item, folder) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, folder) for item in value]
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if isinstance(value, str | Path):
        return str(value).replace(str(folder), ".")
    return value.item() if hasattr(value, "item") else value
