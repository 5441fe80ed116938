"""What `conftest` promises: the tests of a file share what its fixtures make."""

from __future__ import annotations

import pytest


def test_tests_of_a_file_share_a_worker(request: pytest.FixtureRequest) -> None:
    """pytest-xdist 3.8 adds groups to ids, which pytest 9.2 ignores in silence."""
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("its tests are not dealt to workers: make test")
    assert "@" in request.node.nodeid, "pytest-xdist does not group: which pytest is this?"
