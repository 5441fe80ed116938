"""Launches runs, and checks that they leave none of muxrl's temporary files behind."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from tests.faults.hosted import Host
from tests.faults.runs import HostedRun, Run, arguments


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Gives a folder for temporary files, whose short name leaves room for Ray's sockets in it."""
    folder = Path(f"/tmp/mx{os.getpid()}")
    folder.mkdir()
    yield folder
    subprocess.run(["rm", "-rf", str(folder)], check=True)


@pytest.fixture(autouse=True)
def _nothing_temporary_is_left(temporary: Path) -> Iterator[None]:
    yield
    assert not list(temporary.glob("muxrl-*"))


@pytest.fixture
def start(tmp_path: Path, temporary: Path) -> Iterator[Callable[..., Run]]:
    """Gives a function that starts ``muxrl`` as users do, in a process of its own."""
    commands: list[Run] = []

    def start(*arguments: str, **streams: Any) -> Run:
        mark = f"{tmp_path.name}-{len(commands)}"
        commands.append(Run.of_command(arguments, mark, temporary, **streams))
        commands[-1].folder = tmp_path / "run"
        return commands[-1]

    yield start
    for command in commands:
        command.kill()


@pytest.fixture
def launch_alone(tmp_path: Path, start: Callable[..., Run]) -> Callable[..., Run]:
    """Gives a function that launches an experiment in a process of its own."""
    return lambda experiment, option="--no-progress", **streams: start(
        *arguments(experiment, tmp_path, option), **streams
    )


@pytest.fixture
def launch(tmp_path: Path, host: Host) -> Iterator[Callable[[dict[str, Any]], Run]]:
    """Gives a function that launches an experiment in the session's host.

    It is for tests whose fault spares the launching command itself.
    """
    runs: list[HostedRun] = []

    def start(experiment: dict[str, Any]) -> Run:
        launched, mark = host.launch(arguments(experiment, tmp_path, "--no-progress"))
        runs.append(HostedRun(cast(Any, launched), mark, tmp_path / "run", host))
        return runs[-1]

    yield start
    for run in runs:
        host.end(cast(Any, run.popen))
