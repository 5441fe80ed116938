"""Tests of a file share the fixtures of its module, as `conftest` promises."""

from __future__ import annotations

import pytest


def test_tests_of_a_file_share_a_worker(request: pytest.FixtureRequest) -> None:
    """pytest-xdist 3.8 puts groups into ids; a pytest that ignores that would do so silently."""
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("its tests are not dealt to workers: make test")
    assert "@" in request.node.nodeid, "pytest-xdist does not group: which pytest is this?"
