"""Valid configs that are hardly meant are warned of, before the run or as soon as it is known."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.client.scripted_servers import CountingSimulation

from muxrl.orchestrator.cli import main
from muxrl.orchestrator.config import (
    ExperimentConfig,
    ExternalAgentConfig,
    SimulationConfig,
    SimulationFacts,
    StopConfig,
    load_config,
)
from muxrl.orchestrator.config.experiment import Experiment
from muxrl.orchestrator.config.resolve import resolve
from muxrl.orchestrator.config.warnings import find_late, find_warnings
from muxrl.orchestrator.launch.run import Run
from muxrl.orchestrator.launch.whole_run import warner
from muxrl.orchestrator.records.run_directory import make_folder
from muxrl.orchestrator.records.run_status import read_status
from muxrl.protocol.spaces import Box
from muxrl.servers.config import ServerConfig
from muxrl.servers.lookup import own_algorithms

SIMULATION = CountingSimulation("abcd")
FACTS = SimulationFacts({agent: (SIMULATION.observation_spaces[agent],
                                 SIMULATION.action_spaces[agent]) for agent in "abcd"})  # fmt: skip
OWN = "muxrl.experiments.examples.own_trainer.joint_bandit:JointBandit"
TEAMS = ("QMIX", "VDN", "QPLEX", "MASAC", "MADDPG", "HAPPO", OWN)
CONTINUOUS = SimulationFacts(
    {agent: (seen, Box((2,), "float32", -1.0, 1.0)) for agent, (seen, _) in FACTS.agents.items()}
)


def experiment(
    algorithm: str,
    env_steps: int | None,
    env: str = "external",
    has_groups: bool = True,
    **settings: Any,
) -> Experiment:
    server = ServerConfig(algorithm=algorithm, agents=["*"], settings=settings)
    if has_groups and algorithm in TEAMS:
        server.groups = {"one": ["a", "b"], "other": ["c", "d"]}
    agents = SIMULATION.possible_agents if env == "external" else ()
    space: Any = {"observation_space": {"type": "box"}, "action_space": {"type": "discrete"}}
    config = ExperimentConfig(
        name="short",
        simulation=SimulationConfig(env, agents={a: ExternalAgentConfig(**space) for a in agents}),
        servers={"s": server},
        stop=StopConfig(env_steps=env_steps, time_s=60.0),
    )
    return resolve(config, CONTINUOUS if algorithm in ("MASAC", "MADDPG") else FACTS)


SUMO = {"updates_per_episode": 0.25, "num_episodes_before_learning": 1}
"""Settings with which two teams that share a policy make half an update for each episode."""


def test_target_networks_that_are_never_updated_are_warned_of() -> None:
    """An issue: QMIX did not learn in episodes of 180 steps or more, without any warning."""
    short = experiment("QMIX", 33_000, **SUMO)
    (copy, epsilon) = find_warnings(short)
    assert copy == (
        "server 's': the first copy to its target network needs 400 episodes (target_update_freq: "
        "200, num_episodes_before_learning: 1, updates_per_episode: 0.25): where they are longer "
        "than 82 env steps, it never happens in the 33,000 of the run"
    )
    assert epsilon == (
        "server 's': epsilon changes until env step 50,000, but the run stops at 33,000, when it "
        "is 0.373, not 0.05"
    )
    (late,) = find_late(short, 180.0)
    assert late.startswith("server 's': the first copy to its target network needs 400 episodes (")
    assert late.endswith("): at 180.0 env steps each, the run will have only 183")
    assert not list(find_late(short, 82.0))


def test_warnings_that_depend_on_the_length_of_episodes_wait_for_the_run() -> None:
    short = experiment("QMIX", 33_000, env="some:env", **SUMO)
    assert [w for w in find_warnings(short) if "episodes" in w] == []
    assert len(list(find_late(short, 180.0))) == 1
    assert "but the run stops at 300 env steps: it never happens" in next(
        find_warnings(experiment("QMIX", 300, env="some:env", **SUMO))
    )


@pytest.mark.parametrize(
    ("algorithm", "settings", "expected"),
    [
        ("PPO", {"train_batch_size_per_learner": 6_000},
         "its first update needs 6,000 env steps (train_batch_size_per_learner: 6000), but"),
        ("A2C", {"entropy_coeff": [[0, 0.1], [10_000, 0.0]]},
         "entropy_coeff changes until env step 10,000, but the run stops at 5,000, when it is "),
        ("DQN", {"num_steps_sampled_before_learning_starts": 5_001},
         "its first update needs 5,001 env steps (num_steps_sampled_before_learning_starts: "),
        ("DQN", {"target_network_update_freq": 8_000},
         "the first copy to its target network needs 8,000 env steps (target_network_update_freq"),
        ("SAC", {"num_steps_sampled_before_learning_starts": 9_000},
         "its first update needs 9,000 env steps (num_steps_sampled_before_learning_starts: "),
        ("IMPALA", {"train_batch_size_per_learner": 6_000}, "its first update needs 6,000 env"),
        # Two teams share a policy, and so fill one replay.
        ("MASAC", {"num_steps_before_learning": 10_003},
         "its first update needs 5,002 env steps (num_steps_before_learning: 10003, updates"),
    ],
)  # fmt: skip
def test_updates_that_never_happen_are_named(
    algorithm: str, settings: dict[str, Any], expected: str
) -> None:
    found = [w for w in find_warnings(experiment(algorithm, 5_000, **settings))
             if "epsilon" not in w]  # fmt: skip
    assert len(found) == 1, found
    assert found[0].startswith(f"server 's': {expected}")


@pytest.mark.parametrize(
    "key",
    ["evaluation.interval_env_steps", "checkpoint.interval_env_steps",
     "checkpoint.keep_every_env_steps"],
)  # fmt: skip
def test_an_interval_longer_than_the_run_is_warned_of(key: str) -> None:
    short = experiment("PPO", 5_000)
    section, name = key.split(".")
    for interval, told in ((5_000, []), (5_001, [f"{key}: is 5,001, but the run stops at 5,000"])):
        setattr(getattr(short.config, section), name, interval)
        assert [w.partition(" env steps, so it has")[0] for w in find_warnings(short)] == told


@pytest.mark.parametrize("entry", own_algorithms(), ids=lambda entry: entry.name)
def test_a_long_run_and_one_without_a_budget_are_not_warned_of(entry: Any) -> None:
    for env_steps in (200_000, None):
        assert list(find_warnings(experiment(entry.name, env_steps))) == []
        assert list(find_late(experiment(entry.name, env_steps), 25.0)) == []


def test_events_within_the_budget_are_not_warned_of() -> None:
    flat = experiment("A2C", 5_000, entropy_coeff=[[0, 0.1], [4_000, 0.0], [10_000, 0.0]])
    assert list(find_warnings(flat)) == []
    in_time = experiment("MASAC", 5_000, num_steps_before_learning=10_000)
    assert list(find_warnings(in_time)) == []


@pytest.mark.parametrize("algorithm", [*TEAMS, "IQL", "PPO", "MAPPO", "RANDOM"])
def test_team_algorithms_without_groups_are_warned_of(algorithm: str) -> None:
    """IQL is a DQN for each agent, and MAPPO's critic sees all agents: neither is warned of."""
    lonely = experiment(algorithm, None, has_groups=False)
    expected = (
        f"server 's': {algorithm} learns for teams, and without groups each of its 4 agents is a "
        'team of its own; to have one team, add to the server: groups: {s: ["*"]}'
    )
    assert list(find_warnings(lonely)) == [expected] * (algorithm in TEAMS)
    assert list(find_warnings(experiment(algorithm, None))) == []
    lonely.config.servers["s"].settings["mixer"] = lonely.servers["s"].settings["mixer"] = "none"
    assert algorithm != "QMIX" or list(find_warnings(lonely)) == []


def test_action_bounds_of_discrete_actions_are_warned_of() -> None:
    given = experiment("PPO", None)
    given.config.servers["s"].action_bounds = [-1.0, 1.0]
    (idle,) = find_warnings(given)
    assert idle.startswith("server 's': action_bounds [-1.0, 1.0] have no effect: they are")


def test_a_run_records_warnings_and_prints_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A trial's run records them, too, so that its report and comparison can show them."""
    short = experiment("QMIX", 300, env="some:env", **SUMO)
    folder = make_folder(short, tmp_path / "run")
    heard: list[str] = []
    with contextlib.closing(Run(short, folder, on_warned=heard.append)) as run:
        assert heard == list(short.warnings) == list(find_warnings(short))
        run.tally.num_episodes, run.tally.env_steps = 2, 300
        run.end("failed", "it was never started")
    status = read_status(folder)
    assert status is not None
    assert [one.what for one in status.warnings[""]] == heard
    console = Console(file=io.StringIO(), width=20)
    for given in (console, None):
        warner(given)("100% is 'x'")
    assert console.file.getvalue() == "warning: 100% is 'x'\n"  # type: ignore[attr-defined]
    assert caplog.messages == ["100% is 'x'"]


def test_check_prints_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    changes = ["stop.env_steps=900", "evaluation.interval_env_steps=null"]
    assert main(["check", "cartpole_ppo", *changes]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith("warning: server 'ppo': its first update needs ")


@pytest.mark.parametrize(
    ("algorithm", "given", "holds", "is_told"),
    [
        (OWN, "auto", "wait", False),
        (OWN, "wait", "wait", False),
        (OWN, "serve", "wait", True),
        ("QMIX", "auto", "serve", False),
        ("PPO", "serve", "serve", False),
    ],
)
def test_simulations_wait_for_a_trainer_that_cannot_act_while_it_learns(
    algorithm: str, given: Any, holds: str, is_told: bool
) -> None:
    config = experiment(algorithm, None).config
    config.servers["s"].while_learning = given
    resolved = resolve(config, FACTS)
    assert resolved.servers["s"].while_learning == holds
    told = [f"server 's': while_learning: serve has no effect: {algorithm} cannot act"]
    assert [one.partition(" while it")[0] for one in find_warnings(resolved)] == told * is_told


def test_check_shows_whether_simulations_wait(capsys: pytest.CaptureFixture[str]) -> None:
    changes = ["servers.ppo.algorithm=SB3_PPO", "servers.ppo.while_learning=serve"]
    settings = ["servers.ppo.settings={}", "servers.ppo.settings.total_timesteps=9000"]
    settings += ["servers.ppo.settings.batch_env_steps=64"]
    assert main(["check", "cartpole_ppo", *changes, *settings]) == 0
    out = capsys.readouterr().out
    assert re.search(r" ppo +SB3_PPO +wait +127", out)
    assert "warning: server 'ppo': while_learning: serve has no effect: SB3_PPO cannot" in out


def test_check_names_metrics_that_may_never_come(capsys: pytest.CaptureFixture[str]) -> None:
    changes = ["simulation.metrics={win: last, hit: sum}", "stop.metric_at_least={win: 0.9}"]
    best = ["checkpoint.best.name=win", "evaluation.interval_env_steps=1000"]
    assert main(["check", "cartpole_ppo", *changes, *best]) == 0
    *_, win, hit = capsys.readouterr().out.splitlines()
    absent = "was in no info of the episode of random actions that was played; its infos have none"
    keys = "stop.metric_at_least, checkpoint.best.name"
    assert win == f"warning: simulation.metrics: 'win', which {keys} waits for, {absent}"
    assert hit == f"warning: simulation.metrics: 'hit' {absent}"
    assert main(["check", "twenty_lines", "stop.metric_at_most={late: 3, truncate: 0}"]) == 0
    out = capsys.readouterr().out
    sent = "they have to send the metric 'late' when an episode ends; stop.metric_at_most needs it"
    assert f"{sent}\n" in out
    assert out.endswith(
        "warning: stop.metric_at_most: waits for the metric 'truncate', which simulations have to "
        "send; did you mean 'truncated'?\n"
    )


# --- many simulations for a batch -----------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "num", "server", "expected"),
    [
        ("A2C", (2, 32), {}, "server 's': 64 simulations are many for a batch of 200 env steps "
         "(train_batch_size_per_learner): each may have one action in it that was chosen before "
         "the last update, up to 32% of the batch; with 641 env steps it is less than 10%"),
        ("A2C", (1, 20), {}, "update, up to 10% of"),
        ("A2C", (1, 19), {}, None),
        ("A2C", (1, 64), {"settings": {"train_batch_size_per_learner": 641}}, None),
        ("A2C", (1, 64), {"while_learning": "serve"}, None),  # it has a warning of its own
        ("PPO", (1, 64), {}, None),
        ("PPO", (1, 500), {}, "update, up to 12% of the batch; with"),
        ("MAPPO", (1, 64), {"settings": {"train_batch_size_per_learner": 320}}, "up to 20% of"),
        ("IMPALA", (1, 200), {}, None),  # the algorithm corrects for lag
        ("DQN", (1, 64), {}, None),
        ("RANDOM", (1, 64), {}, None),
    ],
)  # fmt: skip
def test_many_simulations_for_a_small_batch_are_warned_of(
    algorithm: str, num: tuple[int, int], server: dict[str, Any], expected: str | None
) -> None:
    num_processes, num_envs = num
    simulation = {"num_processes": num_processes, "num_envs_per_process": num_envs}
    given = {
        "simulation": {"env": "some:env", **simulation},
        "servers": {"s": {"algorithm": algorithm, "agents": ["*"], **server}},
        "stop": {"time_s": 60.0},
    }
    found = list(find_warnings(resolve(load_config(given), FACTS)))
    assert len(found) == (expected is not None), found
    assert expected is None or expected in found[0]


def test_external_simulations_are_not_warned_of_their_number() -> None:
    outside = experiment("A2C", None)
    outside.config.simulation.num_processes = 64
    outside.config.simulation.command = ["play", "{gateway}"]
    assert list(find_warnings(outside)) == []


@pytest.mark.parametrize("command", [[], ["play", "{gateway}"]])
def test_keys_without_effect_on_external_simulations_are_warned_of(command: list[str]) -> None:
    given = experiment("A2C", None)
    config = given.config
    assert not [*find_warnings(given)]
    config.simulation.command = command
    config.simulation.num_processes, config.simulation.num_envs_per_process = 2, 4
    config.evaluation.num_envs, config.timeouts.step_s = 3, 60.0
    (warning,) = find_warnings(given)
    keys = ["simulation.num_envs_per_process", "evaluation.num_envs", "timeouts.step_s"]
    if not command:
        keys.insert(0, "simulation.num_processes")
    assert warning.startswith(f"{', '.join(keys)}: without effect on an external simulation")
