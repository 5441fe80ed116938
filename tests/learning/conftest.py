"""Every test here trains through Ray."""

import pytest


@pytest.fixture(autouse=True)
def _with_ray(running_ray: None) -> None:
    pass
