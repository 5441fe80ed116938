"""How much memory full replays take is computed, and warned of, before anything is played."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.servers.resumable import Served, plan_of

from muxrl.orchestrator.cli import main
from muxrl.orchestrator.config import SimulationFacts, load_config, memory
from muxrl.orchestrator.config.experiment import Experiment
from muxrl.orchestrator.config.memory import describe_replays, find_overflow, find_replays, shown
from muxrl.orchestrator.config.resolve import resolve
from muxrl.orchestrator.config.warnings import find_late, find_warnings
from muxrl.protocol.spaces import Box, Discrete
from muxrl.servers.config import ServerConfig
from muxrl.servers.lookup import find

GIB = 2**30
IMAGE = Box((84, 84, 4), "uint8", 0, 255)


def experiment(
    servers: dict[str, ServerConfig],
    num_agents: int = 2,
    sees: Any = None,
    state_size: int | None = None,
    **fields: Any,
) -> Experiment:
    space = Box((4,)) if sees is None else sees
    facts = SimulationFacts(
        {f"agent_{i}": (space, Discrete(5)) for i in range(num_agents)}, state_size
    )
    given = {"simulation": {"env": "some:env"}, "servers": servers, "stop": {"time_s": 60.0}}
    return resolve(load_config({**given, **fields}), facts)


def qmix(num_agents: int, **settings: Any) -> ServerConfig:
    members = [f"agent_{i}" for i in range(num_agents)]
    return ServerConfig("QMIX", ["*"], groups={"team": members}, settings=settings)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Gives a dict whose "free" is the memory that counts as free on this machine, in bytes."""
    bytes_ = {"free": 8 * GIB}
    monkeypatch.setattr(memory, "free_bytes", lambda: bytes_["free"])
    return bytes_


# --- sizes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case", ["DQN", "SAC", "DQN by priority", "QMIX", "VDN", "IQL", "MASAC", "MADDPG"]
)
def test_a_full_replay_is_as_large_as_computed(case: str) -> None:
    plan = plan_of(case)
    size = find(plan.algorithm).find_replay_size(plan)
    assert size is not None
    served = Served(plan)
    # 96 agent steps for replays of 48, in episodes of 8; or 12 episodes of teams for replays of 6.
    served.play(0, 12)
    served.end()
    learners: dict[str, Any] = served.policies.acting.learners
    stored = sum(learner.replay_bytes() for learner in learners.values())
    length = 40 if size.per_env_step else 8
    # An episode stores one observation more than it has steps, and so does a replay of steps.
    assert size.when_full(length) <= stored <= size.when_full(length) * (length + 1) / length


def test_a_state_of_many_agents_is_in_every_step_of_a_team() -> None:
    few, many = (
        find_replays(experiment({"qmix": qmix(n)}, n, state_size=10 * n))[0].size for n in (2, 200)
    )
    # Each member: 4 observations, last action (float32), mask of 5 and alive (bytes), action.
    assert few.num_bytes == 5_000 * (2 * (4 * 4 + 4 + 5 + 1 + 8) + 20 * 4 + 4)
    assert many.num_bytes == 5_000 * (200 * (4 * 4 + 4 + 5 + 1 + 8) + 2_000 * 4 + 4)


def test_a_batch_that_is_padded_to_a_long_episode_is_named() -> None:
    servers = {"qmix": qmix(2, max_sequence_steps=500, batch_size_episodes=10)}
    ((_, size),) = find_replays(experiment(servers))
    # The state joins both members' observations.
    per_step = 2 * (4 * 4 + 4 + 5 + 1 + 8) + 2 * 4 * 4 + 4
    assert size.update_bytes == 10 * 500 * per_step
    _, padded, *_ = describe_replays(experiment(servers))
    assert "if one has 500 env steps or more (max_sequence_steps), a batch takes" in padded


# --- what is said ---------------------------------------------------------------------------


def test_replays_of_all_servers_share_the_machine(free: dict[str, int]) -> None:
    servers = {f"dqn_{i}": ServerConfig("DQN", [f"agent_{i}"]) for i in range(2)}
    images = experiment(servers, sees=IMAGE)  # each server's replay takes 5.26 GiB
    one_of_them = experiment(
        {"dqn_0": servers["dqn_0"], "ppo": ServerConfig("PPO", ["agent_1"])}, sees=IMAGE
    )
    assert list(find_overflow(one_of_them)) == []
    (warning,) = find_overflow(images)
    assert warning == (
        "the replays of servers 'dqn_0', 'dqn_1' will take at least 10.5 GiB when full, and 8 GiB "
        "are free on this machine; lower the capacity (dqn_0: replay_buffer_config, key "
        "'capacity', dqn_1: replay_buffer_config, key 'capacity')"
    )
    assert warning in find_warnings(images)
    free["free"] = 16 * GIB
    assert list(find_overflow(images)) == []
    assert list(describe_replays(one_of_them)) == [
        "server 'dqn_0' keeps a replay of 50,000 agent steps: at least 5.26 GiB when it is full",
        "free memory on this machine: 16 GiB",
    ]


def test_whole_episodes_are_judged_by_their_length_once_it_is_known(free: dict[str, int]) -> None:
    team = experiment({"qmix": qmix(300)}, 300, state_size=3_000)  # each step takes 106 MiB
    (warning,) = find_overflow(team)
    assert "will not fit into the 8 GiB that are free on this machine" in warning
    assert warning.endswith(
        "where episodes are longer than 77 env steps; lower the capacity (qmix: "
        "buffer_capacity_episodes)"
    )
    assert list(find_overflow(team, 70.0)) == []
    (late,) = find_late(team, 80.0)
    assert late.startswith(
        "the replay of server 'qmix' will take at least 8.27 GiB when full, at 80.0 env steps an "
        "episode, and 8 GiB are free"
    )
    small = experiment({"qmix": qmix(300, buffer_capacity_episodes=500)}, 300, state_size=3_000)
    assert list(find_overflow(small)) == []
    said, of_update, _ = describe_replays(small)
    assert "batch" in of_update
    assert said.startswith("server 'qmix' keeps a replay of 500 episodes: at least 1.03 GiB when")
    assert said.endswith("when it is full if these have 100 env steps each")


def test_nothing_is_said_of_the_memory_of_a_cluster(free: dict[str, int]) -> None:
    far = experiment({"dqn": ServerConfig("DQN", ["*"])}, sees=IMAGE, address="ray://far:10001")
    free["free"] = 0
    assert list(find_overflow(far)) == []
    assert len(list(describe_replays(far))) == 1


def test_check_prints_the_memory_of_replays(
    capsys: pytest.CaptureFixture[str], free: dict[str, int]
) -> None:
    free["free"] = 1_000
    change = 'servers.ppo={"algorithm": "DQN", "agents": ["*"], "settings": {}, "model": {}}'
    assert main(["check", "cartpole_ppo", change]) == 0
    out = capsys.readouterr().out
    assert "server 'ppo' keeps a replay of 50,000 agent steps: at least 1.57 MiB" in out
    assert "free memory on this machine: 1000 B" in out
    assert "warning: the replay of server 'ppo' will take at least 1.57 MiB when full" in out


# --- the machine ----------------------------------------------------------------------------


def test_a_container_s_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_CGROUP", tmp_path / "none")
    of_machine = memory.free_bytes()
    assert of_machine > 0
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    (tmp_path / "memory.current").write_text("3000\n")
    for limit, expected in (("5000", 2_000), ("2000", 0)):
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        assert memory.free_bytes() == expected
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.free_bytes() > 5_000


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1.5 * GIB, "1.5 GiB"),
     (1000 * 2**20, "1000 MiB"), (3 * 2**40, "3.0 TiB"), (5000 * 2**40, "5,000.0 TiB")],
)  # fmt: skip
def test_numbers_of_bytes_are_printed_with_units(num_bytes: float, text: str) -> None:
    assert shown(num_bytes) == text
