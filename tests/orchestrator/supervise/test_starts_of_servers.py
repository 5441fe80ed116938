"""Servers start side by side, and one that fails is told at once, however long others take."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import GetTimeoutError, RayActorError

from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig, prepare
from muxrl.orchestrator.errors import RunFailed
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.supervise import supervision
from muxrl.orchestrator.supervise.process import ProcessId
from muxrl.orchestrator.supervise.server_actors import ServerActors
from muxrl.orchestrator.supervise.server_process import Started
from muxrl.servers.config import ServerConfig

Answer = Started | Exception | None
"""Address and process; None: there is none in time."""


@pytest.fixture
def actors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the servers "a" and "b" of a run; Ray gives `answers` in their order, and no others."""

    def make(answers: dict[str, Answer]) -> ServerActors:
        left = dict(answers)

        def start_actor(process: type, plan: Any, *_: Any, **__: Any) -> Any:
            return SimpleNamespace(start=SimpleNamespace(remote=lambda: plan.server_id))

        def wait(refs: list[str], timeout: float) -> tuple[list[str], list[str]]:
            first = next(iter(left), None)
            if first is None or left.pop(first) is None:
                return [], refs
            return [first], [ref for ref in refs if ref != first]

        def get(ref: str, timeout: float | None) -> Started:
            answer = answers.get(ref)
            if answer is None or ref in left:
                raise GetTimeoutError
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(supervision, "start_actor", start_actor)
        monkeypatch.setattr("ray.wait", wait)
        monkeypatch.setattr("ray.get", get)
        config = ExperimentConfig(
            "two",
            simulation=SimulationConfig(
                "muxrl.experiments.simulations.zero_cost:ZeroCost", {"num_agents": 2}
            ),
            servers={
                "a": ServerConfig("RANDOM", ["agent_0"]),
                "b": ServerConfig("RANDOM", ["agent_1"]),
            },
        )
        folder = RunDirectory.create_at(tmp_path / "run")
        return ServerActors(
            prepare(config, needs_stop=False), folder, lambda *_: None, lambda *_: None
        )

    return make


def test_addresses_are_in_the_order_of_the_config(actors: Any) -> None:
    servers = actors(
        {
            "b": Started("127.0.0.1:2", ProcessId(22, "")),
            "a": Started("127.0.0.1:1", ProcessId(11, "")),
        }
    )
    servers.start(None)
    found = {server_id: address.address for server_id, address in servers.addresses.items()}
    assert list(found.items()) == [("a", "127.0.0.1:1"), ("b", "127.0.0.1:2")]


def test_the_second_fails_while_the_first_still_starts(actors: Any) -> None:
    with pytest.raises(RunFailed, match=r"^server 'b' died"):
        actors({"b": RayActorError()}).start(None)


def test_one_that_never_answers_is_named(actors: Any) -> None:
    reason = r"^server 'b' did not answer for 120 s \(timeouts.start_s sets how long it may take\);"
    with pytest.raises(RunFailed, match=reason):
        actors({"a": Started("127.0.0.1:1", ProcessId(11, "")), "b": None}).start(None)
