"""Every test here trains through RLlib."""

import pytest


@pytest.fixture(autouse=True)
def _with_rllib(rllib: None) -> None:
    pass
