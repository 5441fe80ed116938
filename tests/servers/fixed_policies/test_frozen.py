"""Frozen servers act like the live one when it was saved; evaluation does not affect learners."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.nights import at_night
from tests.servers.export.untrained import plan_of, save

from muxrl.client import MultiplexingClient
from muxrl.client.adapters import Simulation
from muxrl.client.env_loop import EnvLoop
from muxrl.experiments.simulations.cue_game import CueGame
from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig
from muxrl.orchestrator.launch.in_process import Served, serve
from muxrl.protocol.spaces import Box, Discrete
from muxrl.servers.agents.observing import Observing
from muxrl.servers.checkpoints.checkpoint import ABOUT_FILE, STATE_FILE, Checkpoint
from muxrl.servers.config import ServerConfig
from muxrl.servers.fixed_policies.frozen import FrozenActing, open_policies
from muxrl.servers.server import PolicyServer, ServerProblem
from muxrl.servers.trainers.entry import asked_of
from muxrl.servers.trainers.policies import TrainerPolicies

pytestmark = [pytest.mark.learning, pytest.mark.usefixtures("rllib")]

AGENTS = ["agent_0", "agent_1", "agent_2"]
TEAM = {"team": AGENTS}
PPO = {"train_batch_size_per_learner": 40, "minibatch_size": 20, "num_epochs": 2, "lr": 0.01}
A2C = {"train_batch_size_per_learner": 40, "min_sample_timesteps_per_iteration": 40, "lr": 0.05}
QMIX = {
    "hidden_dim": 16, "batch_size_episodes": 4, "num_episodes_before_learning": 4, "lr": 0.01,
    "min_sample_timesteps_per_iteration": 40, "epsilon": 0.5,
}  # fmt: skip
SMALL = {"fcnet_hiddens": [16]}

SERVERS = {
    "ppo, one policy for all": ServerConfig("PPO", settings=PPO, model=SMALL),
    "ppo, recurrent": ServerConfig("PPO", settings=PPO, model={**SMALL, "use_lstm": True}),
    "a2c, two policies": ServerConfig(
        "A2C", settings=A2C, model=SMALL, policies={"one": ["agent_0"], "two": AGENTS[1:]}
    ),
    "mappo": ServerConfig("MAPPO", settings=PPO, model=SMALL),
    "mappo, recurrent": ServerConfig(
        "MAPPO", settings=PPO, model={**SMALL, "use_lstm": True}, groups=TEAM
    ),
    "happo": ServerConfig(
        "HAPPO", settings=PPO, model=SMALL, groups=TEAM, policies={a: [a] for a in AGENTS}
    ),
    "qmix, mlp": ServerConfig("QMIX", settings={**QMIX, "agent": "mlp"}, groups=TEAM),
    "qmix, gru, two teams": ServerConfig(
        "QMIX", settings=QMIX, groups={"pair": AGENTS[:2], "rest": AGENTS[2:]}
    ),
    "ppo, normalised": ServerConfig(
        "PPO", settings=PPO, model=SMALL, normalize_observations=True, normalize_rewards=True
    ),
    "mappo, normalised": ServerConfig(
        "MAPPO", settings=PPO, model=SMALL, normalize_observations=True
    ),
    "qmix, normalised": ServerConfig(
        "QMIX", settings=QMIX, groups=TEAM, normalize_observations=True
    ),
    "ppo, stacked and normalised": ServerConfig(
        "PPO", settings=PPO, model=SMALL, normalize_observations=True, frame_stack=3
    ),
    "qmix, stacked": ServerConfig("QMIX", settings=QMIX, groups=TEAM, frame_stack=2),
    "vdn": ServerConfig("VDN", settings=QMIX, groups=TEAM),
    "qplex": ServerConfig("QPLEX", settings=QMIX, groups=TEAM),
}


def experiment(server: ServerConfig) -> ExperimentConfig:
    return ExperimentConfig(
        name="cues",
        simulation=SimulationConfig("muxrl.experiments.simulations.cue_game:CueGame"),
        servers={"it": dataclasses.replace(server, agents=AGENTS, while_learning="auto")},
    )


def train(served: Served, num_iterations: int) -> None:
    """Plays until the server has learned, and ends its learning."""
    (server,) = served.servers.values()
    with served.client() as client:
        EnvLoop([served.simulation()], client, seeds=iter(range(10_000))).run(
            should_stop=lambda: server.status().iteration >= num_iterations
        )
    served.check()
    server.finish_training()


def actions(
    served: Served, num_steps: int, *, mode: str = "eval", should_explore: bool | None = None
) -> list[dict[str, Any]]:
    """Returns actions for the same observations, which no action changes in the cue game."""
    with served.client() as client:
        return [
            chosen
            for seed in range(num_steps // 10)
            for chosen in episode(client, seed, mode, should_explore)
        ]


def episode(
    client: MultiplexingClient, seed: int, mode: str, should_explore: bool | None
) -> list[dict[str, Any]]:
    game = CueGame()
    observations, _ = game.reset(seed)
    episode_id = client.start_episode(
        training_enabled=mode == "train", should_explore=should_explore
    )
    found = []
    for _ in range(10):
        state = game.state() if client.wants_state else None
        chosen = client.get_action(episode_id, observations, state=state)
        found.append({agent: int(action) for agent, action in chosen.items()})
        observations, rewards, _, _, _ = game.step(chosen)
        client.log_returns(episode_id, rewards)
    state = game.state() if client.wants_state else None
    client.end_episode(episode_id, observations, truncated=True, state=state)
    return found


def watched(game: Simulation, done: dict[int, list[dict[str, Any]]]) -> Simulation:
    """Notes what is done in each episode, by its seed."""
    reset, step = game.reset, game.step
    own: list[dict[str, Any]] = []

    def reset_and_begin(seed: Any = None) -> Any:
        nonlocal own
        own = done.setdefault(seed, [])
        return reset(seed)

    def note_and_step(actions: Any) -> Any:
        own.append({agent: int(action) for agent, action in actions.items()})
        return step(actions)

    game.reset, game.step = reset_and_begin, note_and_step  # type: ignore[method-assign]
    return game


def side_by_side(served: Served, num_steps: int) -> list[dict[str, Any]]:
    """Returns what `actions` does, of episodes that are played at the same time."""
    done: dict[int, list[dict[str, Any]]] = {}
    num = num_steps // 10
    with served.client() as client:
        games = [watched(served.simulation(), done) for _ in range(num)]
        EnvLoop(games, client, seeds=iter(range(num)), mode="eval").run()
    return [chosen for seed in sorted(done) for chosen in done[seed]]


def flat(weights: Any) -> dict[str, bytes]:
    """Every array of nested dicts, as bytes."""
    found: dict[str, bytes] = {}
    for key, value in weights.items():
        if isinstance(value, Mapping):
            found |= {f"{key}/{name}": data for name, data in flat(value).items()}
        else:
            found[key] = np.asarray(value).tobytes()
    return found


def weights(server: PolicyServer) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Returns the learner's weights, targets included, and those that act."""
    policies = server.policies
    assert isinstance(policies, TrainerPolicies)
    return flat(policies.acting.get("networks")), flat(policies.acting.get("weights"))


_AT_NIGHT = ["mappo, recurrent", "qmix, normalised", "vdn", "mappo", "ppo, normalised",
             "a2c, two policies"]  # fmt: skip
"""By day PPO is recurrent, PPO and MAPPO normalise, QMIX and QPLEX mix."""


@pytest.mark.parametrize("name", at_night(SERVERS, _AT_NIGHT))
def test_a_frozen_server_acts_like_the_live_one(name: str, tmp_path: Path) -> None:
    live = SERVERS[name]
    with serve(experiment(live)) as served:
        untrained = actions(served, 30)
        (server,) = served.servers.values()
        before = weights(server)
        train(served, num_iterations=20)  # fewer may leave the best actions as they were
        assert weights(server) != before
        expected = actions(served, 30)
        path = server.policies.save(tmp_path / "saved")
        plan = server.plan
    assert path is not None
    assert expected != untrained

    about = json.loads((path / ABOUT_FILE).read_text())
    assert about["algorithm"] == live.algorithm
    assert about["env_steps"] > 0
    assert about["groups"] == {group: list(members) for group, members in plan.groups.items()}

    frozen = ServerConfig(
        "FROZEN", settings={"checkpoint": str(path)}, policies=live.policies, groups=live.groups
    )
    with serve(experiment(frozen)) as served:
        (server,) = served.servers.values()
        for mode, should_explore in (("eval", None), ("train", None), ("train", True)):
            assert actions(served, 30, mode=mode, should_explore=should_explore) == expected
        assert server.spec().takes_rows
        assert side_by_side(served, 30) == expected
        status = server.status()
        assert (status.weights_seq_no, status.iteration) == (0, 0)
        assert (status.num_env_steps, status.num_episodes) == (60, 6)
        assert not isinstance(server.policies, TrainerPolicies)

    frozen.settings["should_explore"] = True
    with serve(experiment(frozen)) as served:
        explored = actions(served, 30)
        assert explored != expected
        assert actions(served, 30) != explored  # other random numbers


def test_policies_that_no_agents_share_are_found_by_name(tmp_path: Path) -> None:
    with serve(experiment(dataclasses.replace(SERVERS["happo"], policies={}))) as served:
        (server,) = served.servers.values()
        server.finish_training()
        path = server.policies.save(tmp_path / "saved")
    frozen = ServerConfig("FROZEN", settings={"checkpoint": str(path)}, groups=TEAM)
    with serve(experiment(frozen)) as served:
        (server,) = served.servers.values()
        assert {a: plan.policy_id for a, plan in server.plan.agents.items()} == {
            a: a for a in AGENTS
        }
        assert actions(served, 10)


def test_a_checkpoint_that_does_not_fit_is_refused_before_serving(tmp_path: Path) -> None:
    with serve(experiment(SERVERS["a2c, two policies"])) as served:
        (server,) = served.servers.values()
        server.finish_training()
        path = server.policies.save(tmp_path / "saved")
        plan = dataclasses.replace(
            server.plan, algorithm="FROZEN", model={}, settings={"checkpoint": str(path)}
        )
    assert path is not None
    renamed = {
        agent: dataclasses.replace(one, policy_id="three") for agent, one in plan.agents.items()
    }
    with pytest.raises(ServerProblem, match=r"has no policy 'three', it has one, two; say which"):
        PolicyServer(dataclasses.replace(plan, agents=renamed))
    settings = {**plan.settings, "policies": {"three": "one"}}
    server = PolicyServer(dataclasses.replace(plan, agents=renamed, settings=settings))
    assert server.stop()
    settings = {**plan.settings, "policies": {"four": "one"}}
    with pytest.raises(ServerProblem, match=r"names the policy 'four', which the server does not"):
        PolicyServer(dataclasses.replace(plan, settings=settings))
    settings = {**plan.settings, "policies": {"one": "three"}}
    with pytest.raises(ServerProblem, match=r"has no policy 'three', it has one, two"):
        PolicyServer(dataclasses.replace(plan, settings=settings))
    (path / STATE_FILE).write_bytes(b"broken")
    with pytest.raises(ServerProblem, match=r"cannot be loaded: \w+"):
        PolicyServer(plan)


@pytest.mark.parametrize(
    "name",
    at_night(["ppo, one policy for all", "a2c, two policies", "qmix, mlp"], ["a2c, two policies"]),
)
def test_evaluation_leaves_weights_and_the_training_s_random_numbers_alone(name: str) -> None:
    def play(should_evaluate: bool) -> tuple[list[Any], Any]:
        """Returns the actions of training, and the resulting weights."""
        server_config = dataclasses.replace(SERVERS[name])
        config = experiment(server_config)
        config.servers["it"].while_learning = "wait"  # in turns, so that a seed decides it all
        with serve(config) as served:
            (server,) = served.servers.values()
            trained = []
            with served.client() as client, served.client() as other:
                for seed in range(50):  # QMIX takes 20 episodes at a time
                    trained += episode(client, seed, "train", None)
                    while server.status().is_waiting_for_learner:
                        time.sleep(0.001)
                    if should_evaluate:
                        before = weights(server)
                        for explore in (True, False):
                            episode(other, 100 + seed, "eval", explore)
                        assert weights(server) == before
            served.check()
            assert server.status().weights_seq_no > 1
            server.finish_training()
            return trained, weights(server)

    alone, evaluated = play(False), play(True)
    assert evaluated[0] == alone[0]
    assert evaluated[1] == alone[1]


def test_servers_of_one_process_draw_what_they_would_draw_alone(tmp_path: Path) -> None:
    """`muxrl evaluate --explore` has all of them in threads of its own."""
    plan = plan_of("PPO", Box((2,)), Discrete(5))
    checkpoint = Checkpoint.open(save(plan, tmp_path))

    def drawn(acting: FrozenActing) -> list[int]:
        seats = open_policies(checkpoint, {}).make_seats(plan, Observing.of(plan))
        asked = asked_of([seats["a"]], [np.zeros(2, np.float32)], plan.agents)
        return [int(acting.answer(asked).actions[0]) for _ in range(200)]

    def frozen() -> FrozenActing:
        return FrozenActing(plan, open_policies(checkpoint, {}), should_explore=True)

    alone = drawn(frozen())
    assert len(set(alone)) > 1
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(drawn, [frozen(), frozen()])) == [alone, alone]
