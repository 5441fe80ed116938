"""What trackers are told of a run, read from its directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from muxrl.orchestrator.errors import NotARunDirectory
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.trackers.tracker import TrackedRun


def describe(folder: RunDirectory, resumed_at: int | None = None) -> TrackedRun:
    """Returns what trackers are told of a run.

    Args:
        folder: the run's directory.
        resumed_at: env steps at which it goes on; None: it is new, or over.

    Raises:
        NotARunDirectory: its ``plan.json`` or ``config.yaml`` is absent or broken.
    """
    plan = folder.read_plan()
    path = folder.path.resolve()
    config = _read_yaml(folder, path / "config.yaml")
    sweep = folder.sweep
    named = config if sweep is None else _read_yaml(folder, sweep / "sweep.yaml")
    return TrackedRun(
        path,
        str(named.get("name") or folder.name),
        str(plan.get("assignment", "")),
        _without_tokens(config),
        "" if sweep is None else sweep.name,
        resumed_at,
    )


def _read_yaml(folder: RunDirectory, path: Path) -> dict[str, Any]:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise NotARunDirectory(folder.path, f"its {path.name} cannot be read: {error}") from error


def _without_tokens(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _without_tokens(value) for key, value in tree.items() if key != "token"}
    return tree
