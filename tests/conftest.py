"""What holds for all tests: Hypothesis without deadlines, and Ray only where a marker says so."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import settings
from tests.faults.hosted import Host
from tests.looks import look_once
from tests.processes import MARK, assert_all_end

# How long an example takes depends on how busy the machine is, not on what is tested.
settings.register_profile("muxrl", deadline=None)
settings.load_profile("muxrl")

_NO_RAY = {"RAY_ADDRESS": "none: the test has no marker `ray`", "RAY_ENABLE_AUTO_CONNECT": "0"}
"""Environment in which `ray.init` refuses, in this process and in its children: it takes the
address for that of a cluster, and ``num_cpus`` is not allowed beside one."""
_REFUSED = ("When connecting to an existing cluster", "Ray has not been started")
"""What Ray says then."""


def pytest_configure() -> None:
    """Has Ctrl-C interrupt, also where a script began the tests in the background (`&`)."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    look_once()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Keeps modules and tests, a million objects, out of the garbage collector's way."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Marks a test by what it needs: its own Ray, one process with others, a second try."""
    fixtures = getattr(item, "fixturenames", ())
    if "running_ray" in fixtures:
        item.add_marker("ray")
    # What is learned may depend on the clock. The summary says of a second try: "rerun".
    if _has(item, "learning"):
        item.add_marker(pytest.mark.flaky(reruns=1))
    shared = {"host", "running_ray"}.intersection(fixtures)
    if shared:
        item.add_marker(pytest.mark.xdist_group(min(shared)))
    elif not _is_long(item) or _shares_fixtures(item):
        item.add_marker(pytest.mark.xdist_group(str(item.path)))  # fixtures of its file: once


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Deals long tests among the short ones, faults among those that compute, since they wait.

    Those of one group stay together, or the fixtures of their file would be made again and again.
    The slow ones come first, so that no worker is left with one at the end. Tests with Ray in this
    process come last of all, so that none runs before those that must do without.
    """
    items.sort(key=lambda item: not _has(item, "slow"))
    kinds: dict[str, list[pytest.Item]] = {"faults": [], "long": [], "short": [], "ray": []}
    for item in items:
        if _has(item, "faults"):
            kinds["faults"].append(item)
        elif _has(item, "ray"):
            kinds["ray"].append(item)
        else:
            kinds["long" if _is_long(item) else "short"].append(item)
    last = kinds.pop("ray")
    places: dict[tuple[str, object], float] = {}
    for name, kind in kinds.items():
        for number, item in enumerate(kind):
            places.setdefault((name, _group(item)), (number + 0.5) / len(kind))
    dealt = [(places[name, _group(item)], item) for name, kind in kinds.items() for item in kind]
    items[:] = [*(item for _, item in sorted(dealt, key=lambda pair: pair[0])), *last]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Lets only tests marked `ray` start Ray."""
    if _has(item, "ray"):
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in _NO_RAY.items():
            patch.setenv(name, value)
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Says why Ray did not start."""
    report = yield
    shown = f"{report.longrepr}{report.capstderr}"
    if report.failed and not _has(item, "ray") and any(text in shown for text in _REFUSED):
        report.sections.append(("Ray", "only tests marked `ray` may start Ray: tests/conftest.py"))
    return report


@pytest.fixture(scope="session")
def rllib(tmp_path_factory: pytest.TempPathFactory) -> None:
    """For tests that learn in this process: no Ray, one thread, nothing in the user's home."""
    import torch
    from ray.tune.trainable import trainable

    from muxrl.servers.trainers.rllib.connector_callers import find_callers_without_source
    from muxrl.servers.trainers.rllib.object_store import keep_objects_here

    keep_objects_here()
    find_callers_without_source()
    torch.set_num_threads(1)
    # Every Algorithm makes itself a directory there, by default ~/ray_results.
    trainable.DEFAULT_STORAGE_PATH = str(tmp_path_factory.mktemp("ray_results"))


@pytest.fixture(scope="session")
def running_ray() -> Iterator[None]:
    """One Ray of two logical CPUs for all tests of this process that ask for it.

    Afterwards neither a process nor a folder of it is left.
    """
    from muxrl.orchestrator.supervise.ray_session import ray_session

    mark = f"{os.getpid()}-session"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv(MARK, mark)
        session = contextlib.ExitStack()
        folder = session.enter_context(ray_session(num_cpus=2))
    yield
    session.close()
    assert_all_end(mark, patience_s=30.0)
    assert folder is not None
    assert not folder.exists(), "Ray's folder"


@pytest.fixture(scope="session")
def host() -> Iterator[Host]:
    """A process in which one launch after another plays."""
    host = Host()
    yield host
    host.close()


def _group(item: pytest.Item) -> object:
    """What one worker runs in one go: the tests of a group, or a test that has none."""
    marker = item.get_closest_marker("xdist_group")
    return item if marker is None else marker.args[0]


def _shares_fixtures(item: pytest.Item) -> bool:
    """Whether something is made for it that other tests of its file use, too."""
    known = getattr(item, "_fixtureinfo", None)
    return known is not None and any(
        found[-1].scope == "module" for found in known.name2fixturedefs.values()
    )


def _is_long(item: pytest.Item) -> bool:
    return any(_has(item, marker) for marker in ("slow", "faults", "learning"))


def _has(item: pytest.Item, marker: str) -> bool:
    return item.get_closest_marker(marker) is not None
