"""Computes the figures of the files of `runs/` and `swept/`; `expected.json` has them."""

from __future__ import annotations

import contextlib
import io
import json
import math
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

from muxrl import RunResult, SweepResult
from muxrl.orchestrator import cli
from muxrl.orchestrator.watch.app import view_of

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
    """Returns what reports, comparisons, the listing, the page and frames give for the runs."""
    one, two, swept = (str(folder / name) for name in (*RUNS, "swept"))
    for command in (
        ["report", one],
        ["report", one, two, "--out", f"{folder}/report"],
        ["compare", one, two, "--out", f"{folder}/compared"],
        ["compare", swept, "--out", f"{folder}/compared_sweep"],
    ):
        assert cli.main(command) == 0, command
    run = RunResult.read(folder / "one")
    found = {
        "report of one": _read(folder / "one" / "summary.json"),
        "report": _read(folder / "report" / "summary.json"),
        "compared": _read(folder / "compared" / "comparison.json"),
        "compared sweep": _read(folder / "compared_sweep" / "comparison.json"),
        "listed": _listed(folder),
        "page": _shown(folder / "one"),
        "page of the sweep": _shown(folder / "swept"),
        "frame": run.frame().to_dict("list"),
        "training": run.training().to_dict("list"),
        "metrics": run.metrics().to_dict("list"),
        "swept": SweepResult.read(folder / "swept").frame().to_dict("list"),
    }
    return {key: _plain(value, folder) for key, value in found.items()}


def outputs(folder: Path) -> dict[str, Any]:
    """Returns the outputs of run "one"'s exported networks for four observations.

    The first four are one-hot, for the first agent and action if a network takes these: logits of
    PPO and values of QMIX, each [4, 4].
    """
    import onnxruntime

    assert cli.main(["export", str(folder / "one")]) == 0
    found = {}
    for server_id in ("team", "ppo"):
        session = onnxruntime.InferenceSession(folder / "one" / "onnx" / server_id / "default.onnx")
        inputs = {i.name: np.zeros(4, np.int64) for i in session.get_inputs()}
        inputs["observation"] = np.eye(4, 7, dtype=np.float32)
        found[server_id] = session.run(None, inputs)[1].tolist()
    return found


def _read(path: Path) -> Any:
    return json.loads(path.read_text())


def _listed(folder: Path) -> dict[str, Any]:
    """Returns what `muxrl runs` prints, without the time a sweep began, which is its files' age."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert cli.main(["runs", str(folder), "--json"]) == 0
    entries = {entry["name"]: entry for entry in json.loads(printed.getvalue())}
    del entries["swept"]["began_at"]
    return entries


def _shown(path: Path) -> Any:
    """Returns what the live page shows once it has read the files to their ends."""
    view = view_of(path)
    for _ in range(100):
        if (state := view.read())["is_whole"]:
            return state
    raise AssertionError(f"the page of {path.name} is never whole")


def _plain(value: Any, folder: Path) -> Any:
    """Returns a value in JSON's own types, without paths of this machine, and with NaN as None."""
    if isinstance(value, dict):
        return {str(key): _plain(item, folder) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, folder) for item in value]
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if isinstance(value, str | Path):
        return str(value).replace(str(folder), ".")
    return value.item() if hasattr(value, "item") else value
