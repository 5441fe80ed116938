"""RLlib 2.6.3's `PolicyClient` and `PolicyServerInput`, used as its examples use them.

https://docs.ray.io/en/releases-2.6.3/rllib/rllib-env.html#external-application-clients, and
``rllib/examples/serving/cartpole_server.py`` and ``cartpole_client.py`` in ray 2.6.3.

    play      starts servers and simulations, each in its own process, and waits
    serve     one algorithm behind one `PolicyServerInput`
    simulate  one simulation that asks all servers

A `PolicyClient` knows only one server. So the simulation splits agents among clients by hand and
asks one after another, as users did. Runs in the environment of ``requirements/old_rllib.txt``.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.peers.simulation import TimedZeroCost
from benchmarks.peers.updates import UpdateLog, add_arguments
from benchmarks.peers.work import (
    BATCH_ENV_STEPS,
    HIDDEN,
    MINIBATCH,
    PPO_EPOCHS,
    Server,
    Setup,
)
from gymnasium import spaces

POLICY = "shared"
FRAGMENT_ENV_STEPS = 200
"""Env steps of a client or server in one sample, by RLlib's default of that time."""


def policy_of(agent_id: str, *args: Any, **kwargs: Any) -> str:
    """Maps every agent to the one policy. Configs are pickled, so this is a module's function."""
    return POLICY


def algorithm_config(algorithm: str, seed: int) -> Any:
    """Returns the config of one server, without its input."""
    from ray.rllib.policy.policy import PolicySpec

    observation_space = spaces.Box(-np.inf, np.inf, (8,), np.float32)
    action_space = spaces.Discrete(5)
    if algorithm == "PPO":
        from ray.rllib.algorithms.ppo import PPOConfig

        config = PPOConfig().training(
            num_sgd_iter=PPO_EPOCHS, sgd_minibatch_size=MINIBATCH, _enable_learner_api=False
        )
        config.rl_module(_enable_rl_module_api=False)
    else:
        from ray.rllib.algorithms.a2c import A2CConfig

        config = A2CConfig().reporting(min_time_s_per_iteration=0)
    return (
        config.environment(env=None, observation_space=observation_space, action_space=action_space)
        .framework("torch")
        .rollouts(
            num_rollout_workers=0,
            enable_connectors=False,
            rollout_fragment_length=FRAGMENT_ENV_STEPS,
        )
        .evaluation(off_policy_estimation_methods={})
        .multi_agent(
            policies={POLICY: PolicySpec(None, observation_space, action_space)},
            policy_mapping_fn=policy_of,
        )
        .training(
            train_batch_size=BATCH_ENV_STEPS,
            model={"fcnet_hiddens": list(HIDDEN), "vf_share_layers": False},
        )
        .debugging(seed=seed, log_level="ERROR")
    )


def serve(folder: Path, server: Server, port: int, seed: int) -> None:
    """Serves and learns until the process is ended."""
    import ray
    from ray.rllib.env.policy_server_input import PolicyServerInput

    ray.init(address="local", num_cpus=1, include_dashboard=False)
    algo = (
        algorithm_config(server.algorithm, seed)
        .offline_data(input_=lambda context: PolicyServerInput(context, "127.0.0.1", port))
        .build()
    )
    log, trained = UpdateLog(folder / "metrics", server.name), 0
    while True:
        result = algo.train()
        if (now := int(result["num_env_steps_trained"])) > trained:
            log.add(now)
            trained = now


def simulate(folder: Path, servers: dict[int, tuple[str, ...]], mode: str, seed: int) -> None:
    """Plays one simulation until the process is ended.

    Args:
        folder: the folder for the file of steps.
        servers: by port of a server: its agents.
        mode: inference mode of `PolicyClient`, "remote" or "local".
        seed: of the simulation.
    """
    from ray.rllib.env.policy_client import PolicyClient

    simulation = TimedZeroCost(str(folder))
    clients = [
        (PolicyClient(f"http://127.0.0.1:{port}", inference_mode=mode), agents)
        for port, agents in servers.items()
    ]
    while True:
        observations, _ = simulation.reset(seed=seed)
        played = [(client, agents, client.start_episode()) for client, agents in clients]
        while simulation.agents:
            actions: dict[str, Any] = {}
            for client, agents, episode_id in played:
                actions |= client.get_action(episode_id, {a: observations[a] for a in agents})
            observations, rewards, *_ = simulation.step(actions)
            for client, agents, episode_id in played:
                client.log_returns(episode_id, {a: rewards[a] for a in agents})
        for client, agents, episode_id in played:
            client.end_episode(episode_id, {a: observations[a] for a in agents})


def play(folder: Path, setup: Setup, mode: str, seed: int) -> None:
    """Starts servers, then simulations; exits with an error if one of them ends."""
    processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(name: str, *arguments: str) -> None:
        command = [sys.executable, "-m", "benchmarks.peers.contestants.old_rllib", *arguments]
        with (folder / f"{name}.log").open("wb") as log:
            processes[name] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def check() -> None:
        for name, process in processes.items():
            if process.poll() is not None:
                raise SystemExit(
                    f"{name} ended with {process.returncode}:\n"
                    + (folder / f"{name}.log").read_text()[-2_000:]
                )

    ports = free_ports(setup.num_servers)
    for port, server in zip(ports, setup.servers, strict=True):
        start(
            server.name,
            "serve",
            str(folder),
            server.name,
            server.algorithm,
            "--port",
            str(port),
            "--seed",
            str(seed),
        )
    for port in ports:
        while not is_listening(port):
            check()
            time.sleep(0.2)
    told = [f"--server={p}={','.join(s.agents)}" for p, s in zip(ports, setup.servers, strict=True)]
    for i in range(setup.num_simulations):
        start(f"simulation_{i}", "simulate", str(folder), mode, *told, "--seed", str(seed + i))
    while True:
        check()
        time.sleep(0.5)


def free_ports(number: int) -> list[int]:
    """Returns ports that are not in use."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def is_listening(port: int) -> bool:
    """Whether a server listens on a port."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("play")
    verb.add_argument("mode", choices=["remote", "local"])
    add_arguments(verb)
    verb = verbs.add_parser("serve")
    verb.add_argument("folder", type=Path)
    verb.add_argument("name")
    verb.add_argument("algorithm", choices=["PPO", "A2C"])
    verb.add_argument("--port", type=int, required=True)
    verb.add_argument("--seed", type=int, required=True)
    verb = verbs.add_parser("simulate")
    verb.add_argument("folder", type=Path)
    verb.add_argument("mode", choices=["remote", "local"])
    verb.add_argument("--server", action="append", required=True, help="PORT=AGENT,AGENT,...")
    verb.add_argument("--seed", type=int, required=True)
    args = parser.parse_args()
    if args.verb == "play":
        play(args.folder, Setup(args.servers, args.simulations), args.mode, args.seed)
    elif args.verb == "serve":
        serve(args.folder, Server(args.name, args.algorithm, ()), args.port, args.seed)
    else:
        servers = {}
        for given in args.server:
            port, _, agents = given.partition("=")
            servers[int(port)] = tuple(agents.split(","))
        simulate(args.folder, servers, args.mode, args.seed)


if __name__ == "__main__":
    main()
