"""Fixtures: every test of this folder trains through RLlib."""

import pytest


@pytest.fixture(autouse=True)
def _with_rllib(rllib: None) -> None:
    pass
