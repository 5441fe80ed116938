"""The comparison of `made_up_runs`, and the folder with its files."""

from pathlib import Path

import pytest
from tests.orchestrator.comparisons.compared_runs import made_up_runs

from muxrl.orchestrator.comparisons.compare import Comparison, compare_runs


@pytest.fixture(scope="session")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return compare_runs(made_up_runs(tmp_path_factory.mktemp("runs")), num_episodes=3)


@pytest.fixture(scope="session")
def written(comparison: Comparison, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return comparison.write(tmp_path_factory.mktemp("report") / "out").parent
