"""Set-up of all tests: Hypothesis without deadlines, and Ray only for tests with its marker."""

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

# The time of an example depends on how busy the machine is, not on the tested code.
settings.register_profile("muxrl", deadline=None)
settings.load_profile("muxrl")

_NO_RAY = {"RAY_ADDRESS": "none: the test has no marker `ray`", "RAY_ENABLE_AUTO_CONNECT": "0"}
"""Environment in which `ray.init` refuses, in this process and in its children.

It takes the address for that of a cluster, for which it allows no ``num_cpus``.
"""
_REFUSED = ("When connecting to an existing cluster", "Ray has not been started")
"""Beginnings of Ray's messages when it refuses."""


def pytest_configure() -> None:
    """Lets Ctrl-C interrupt the tests even if a script began them in the background (`&`)."""
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
    """Gives a test the markers of its needs: its own Ray, one worker with others, a second try."""
    fixtures = getattr(item, "fixturenames", ())
    if "running_ray" in fixtures:
        item.add_marker("ray")
    # What is learned may depend on the clock. The summary shows a second try as "rerun".
    if _has(item, "learning"):
        item.add_marker(pytest.mark.flaky(reruns=1))
    shared = {"host", "running_ray"}.intersection(fixtures)
    if shared:
        item.add_marker(pytest.mark.xdist_group(min(shared)))
    elif not _is_long(item) or _shares_fixtures(item):
        item.add_marker(pytest.mark.xdist_group(str(item.path)))  # makes its file's fixtures once


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spreads long tests among short ones, and faults, which mostly wait, among those that compute.

    Tests of one group stay together, or the fixtures of their file would be made again and again.
    Slow tests come first, so that no worker is left with one at the end. Tests with Ray in this
    process come last, so that none runs before tests that must do without it.
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
    """Adds the reason to a report if Ray did not start."""
    report = yield
    shown = f"{report.longrepr}{report.capstderr}"
    if report.failed and not _has(item, "ray") and any(text in shown for text in _REFUSED):
        report.sections.append(("Ray", "only tests marked `ray` may start Ray: tests/conftest.py"))
    return report


@pytest.fixture(scope="session")
def rllib(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Prepares RLlib for tests that learn in this process: no Ray, one thread, no files at home."""
    import torch
    from ray.tune.trainable import trainable

    from muxrl.servers.trainers.rllib.connector_callers import find_callers_without_source
    from muxrl.servers.trainers.rllib.object_store import keep_objects_here

    keep_objects_here()
    find_callers_without_source()
    torch.set_num_threads(1)
    # Every Algorithm makes itself a directory there, by default in ~/ray_results.
    trainable.DEFAULT_STORAGE_PATH = str(tmp_path_factory.mktemp("ray_results"))


@pytest.fixture(scope="session")
def running_ray() -> Iterator[None]:
    """Starts one Ray of two logical CPUs for all tests of this process that use it.

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
    """Gives a process in which one launch after another plays."""
    host = Host()
    yield host
    host.close()


def _group(item: pytest.Item) -> object:
    """Returns the group of tests that one worker runs together: a marked one, or the test alone."""
    marker = item.get_closest_marker("xdist_group")
    return item if marker is None else marker.args[0]


def _shares_fixtures(item: pytest.Item) -> bool:
    """Returns whether a test has a fixture that other tests of its file share."""
    known = getattr(item, "_fixtureinfo", None)
    return known is not None and any(
        found[-1].scope == "module" for found in known.name2fixturedefs.values()
    )


def _is_long(item: pytest.Item) -> bool:
    return any(_has(item, marker) for marker in ("slow", "faults", "learning"))


def _has(item: pytest.Item, marker: str) -> bool:
    return item.get_closest_marker(marker) is not None
