"""How an algorithm is built: as RLlib builds it, in less time and with fewer threads."""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from ray.rllib.connectors import connector_v2
from ray.rllib.utils.metrics import LEARNER_RESULTS
from ray.tune.utils.util import UtilMonitor
from tests.compliance.real_servers import SEES, SMALL_MODEL, make_plan

from muxrl.servers.learned import learned_policies
from muxrl.servers.learned.learned_policies import LearnedPolicies, RLlibLearning
from muxrl.servers.server import PolicyServer


@contextlib.contextmanager
def policies_of(algorithm: str) -> Iterator[LearnedPolicies]:
    agents = {agent: SEES[agent] for agent in "ab"}
    server = PolicyServer(make_plan(algorithm, agents, model=SMALL_MODEL))
    try:
        assert isinstance(server.policies, LearnedPolicies)
        yield server.policies
    finally:
        server.stop()


def connectors(algorithm: str) -> list[tuple[str, dict[str, Any]]]:
    """Returns what the connectors of a learner are, and what they were made with."""
    with policies_of(algorithm) as policies:
        learner = policies.algo.learner_group._learner
        assert learner is not None
        pipeline: Any = learner._learner_connector
        return [
            (type(one).__name__, {k: getattr(v, "__qualname__", v) for k, v in kept.items()})
            for one in pipeline.connectors
            for kept in [one.get_ctor_args_and_kwargs()[1]]
        ]


@pytest.mark.parametrize("algorithm", ["PPO", "DQN", "SAC"])
def test_connectors_know_their_arguments_as_rllib_finds_them(
    rllib: None, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    found = connectors(algorithm)
    monkeypatch.setattr(connector_v2, "inspect", inspect)
    monkeypatch.setattr(learned_policies, "find_callers_without_source", lambda: None)
    assert found == connectors(algorithm)
    assert any(arguments for _, arguments in found)


@pytest.mark.parametrize(("algorithm", "epsilon"), [("DQN", 1.0), ("PPO", None)])
def test_a_record_has_the_epsilon_by_which_its_module_acts(
    rllib: None, monkeypatch: pytest.MonkeyPatch, algorithm: str, epsilon: float | None
) -> None:
    with policies_of(algorithm) as policies:
        runner: Any = policies.algo.env_runner
        results = {module_id: {"loss": 1.0} for module_id in policies.algo.config.policies}
        monkeypatch.setattr(policies.algo, "train", lambda: {LEARNER_RESULTS: results})
        (record,) = RLlibLearning(policies.algo, runner).train().values()
        assert record.get("epsilon") == epsilon


def test_no_thread_watches_the_load_of_the_system(rllib: None) -> None:
    with policies_of("PPO"):
        assert not any(isinstance(thread, UtilMonitor) for thread in threading.enumerate())
