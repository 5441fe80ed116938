"""Compares the processor time of learning with Stable-Baselines3 and EPyMARL, on one thread each.

    python -m benchmarks.learners --rounds 3
    python -m benchmarks.learners --device cuda --simulations  # updates on a GPU

Both sides take turns (ours, theirs, ours, ...), with equal networks, batches and numbers of
updates.

- *Update*: one update on a filled replay, or for PPO all updates of a batch, against ``train()``.
  QMIX and MAPPO are compared with EPyMARL, for which the first call makes an environment.
- *Run*: one server in one process and 1 or 16 simulations in another, the whole cost of both,
  against as many environments in Stable-Baselines3's process.

Prints the medians and the ratios of the rounds; below 1 ours takes less.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium
import numpy as np
import torch
from benchmarks.peers.work import TEAM_UPDATES
from benchmarks.step_path import Serving, cpu_s, serving
from benchmarks.team_updates import team_update_ours, team_update_theirs
from torch import nn

from muxrl.client import MultiplexingClient
from muxrl.client.adapters import make_simulation
from muxrl.client.env_loop import EnvLoop
from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig, prepare
from muxrl.orchestrator.supervise.process import ONE_THREAD
from muxrl.protocol.messages import StartEpisode, Step
from muxrl.servers.algorithms.sac import SAC
from muxrl.servers.config import ResourcesConfig, ServerConfig
from muxrl.servers.episodes.trajectories import Trajectory
from muxrl.servers.server import make_policies

FIRST = 1_000
"""Env steps before the first update."""
CAPACITY = 50_000


@dataclass(frozen=True)
class Case:
    """One algorithm, set alike on both sides.

    Attributes:
        algorithm: the name, which is the same on both sides.
        env_id: id of a Gymnasium environment.
        hidden: units of each of the two hidden layers.
        steps_per_update: env steps between two updates.
        settings: our settings, in addition to these.
        theirs: arguments of Stable-Baselines3's class, in addition to these.
    """

    algorithm: str
    env_id: str
    hidden: int
    batch: int
    steps_per_update: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    theirs: Mapping[str, Any] = field(default_factory=dict)
    ours: str = ""
    """Our trainer class, if it is not the algorithm of that name."""
    updates_per_round: int = 500
    num_epochs: int = 0
    """Epochs of an on-policy algorithm, whose batch has `steps_per_update` env steps; else 0."""
    device: str = "cpu"

    def clock(self) -> float:
        """Returns processor seconds; with a GPU, wall-clock seconds once its work is done."""
        if self.device == "cpu":
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    @property
    def steps_per_round(self) -> int:
        """Env steps of `updates_per_round` updates."""
        return self.updates_per_round * self.steps_per_update

    def config(self) -> ExperimentConfig:
        """Returns our experiment, with one server."""
        settings = {
            "train_batch_size_per_learner": self.batch,
            "num_steps_sampled_before_learning_starts": FIRST,
            "rollout_fragment_length": self.steps_per_update,
            "replay_buffer_config": {"capacity": CAPACITY},
            **self.settings,
        }
        model: dict[str, Any] = {"fcnet_hiddens": [self.hidden] * 2, "fcnet_activation": "relu"}
        if self.num_epochs:
            model = {"fcnet_hiddens": [self.hidden] * 2}
            settings = {
                "train_batch_size_per_learner": self.steps_per_update,
                "minibatch_size": self.batch,
                "num_epochs": self.num_epochs,
                **self.settings,
            }
        if self.algorithm == "DQN":
            model["head_fcnet_hiddens"] = []
        return ExperimentConfig(
            name="learners",
            simulation=SimulationConfig(env=f"gymnasium:{self.env_id}"),
            servers={
                "one": ServerConfig(
                    algorithm=self.ours or self.algorithm,
                    agents=["*"],
                    settings=settings,
                    model=model,
                    resources=ResourcesConfig(num_gpus=float(self.device != "cpu")),
                )
            },
        )

    def peer(self, num_envs: int) -> Any:
        """Returns Stable-Baselines3's model of the same algorithm."""
        import stable_baselines3 as sb3
        from stable_baselines3.common.vec_env import DummyVecEnv

        envs = DummyVecEnv([lambda: gymnasium.make(self.env_id)] * num_envs)
        if self.num_epochs:
            return getattr(sb3, self.algorithm)(
                "MlpPolicy", envs, batch_size=self.batch, n_epochs=self.num_epochs,
                device=self.device, n_steps=self.steps_per_update // num_envs, seed=0,
                policy_kwargs={"net_arch": [self.hidden] * 2}, **self.theirs,
            )  # fmt: skip
        train_freq = max(1, self.steps_per_update // num_envs)
        return getattr(sb3, self.algorithm)(
            "MlpPolicy", envs, batch_size=self.batch, learning_starts=FIRST, device=self.device,
            buffer_size=CAPACITY, train_freq=train_freq, seed=0,
            gradient_steps=max(1, train_freq * num_envs // self.steps_per_update),
            policy_kwargs={"net_arch": [self.hidden] * 2}, **self.theirs,
        )  # fmt: skip


CASES = {
    "DQN": Case(
        "DQN", "CartPole-v1", 64, 32, 4,
        {"double_q": False, "dueling": False, "grad_clip": 10.0,
         "target_network_update_freq": 500, "epsilon": 0.1, "td_error_loss_fn": "huber"},
        {"max_grad_norm": 10.0, "target_update_interval": 500,
         "exploration_initial_eps": 0.1, "exploration_final_eps": 0.1},
    ),
    "SAC": Case("SAC", "Pendulum-v1", 256, 256, 1, {"tau": 0.005}, {"tau": 0.005},
        "benchmarks.learners:PlainSAC",
        updates_per_round=100,
    ),
    "PPO": Case("PPO", "CartPole-v1", 64, 64, 2048,
        {"lr": 3e-4, "use_kl_loss": False, "clip_param": 0.2, "lambda_": 0.95,
         "vf_loss_coeff": 0.5, "grad_clip": 0.5},
        updates_per_round=1, num_epochs=10,
    ),
}  # fmt: skip


class PlainSAC(SAC):
    """SAC with the critics of Stable-Baselines3.

    Our critics have an encoder each for observation and action, and layers that join them, which
    are twice as many multiplications in all.
    """

    def make_net(self) -> nn.Module:
        net: Any = super().make_net()
        spaces = self.policy.observation_space, self.policy.action_space
        size, hidden = sum(space.shape[0] for space in spaces), self.settings.model.fcnet_hiddens[0]
        for critics in (net.critics, net.targets):
            for i in range(len(critics)):
                critics[i] = _SideBySide(size, hidden)
        return net


class _SideBySide(nn.Module):
    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.encoder = nn.Identity()
        self.layers = nn.Sequential(
            nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
            nn.Linear(hidden, 1),
        )  # fmt: skip

    def forward(self, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.layers(torch.cat([observations, actions], -1))
        return values.squeeze(-1)


def play_ours(case: Case, num: int) -> Iterator[float]:
    """Plays `num` simulations; yields for each round the processor time of an env step, ms."""
    with serving(case.config()) as (server,):
        yield from _play(case, num, server)


def _play(case: Case, num: int, server: Serving) -> Iterator[float]:
    simulations = [make_simulation(f"gymnasium:{case.env_id}", {}) for _ in range(num)]
    pids = [server.pid, os.getpid()]
    with MultiplexingClient([server.address]) as client:
        loop = EnvLoop(simulations, client, mode="train", should_explore=True)

        def advance(steps: int) -> int:
            until = loop.num_env_steps + steps
            before = loop.num_env_steps
            loop.run(should_stop=lambda: loop.num_env_steps >= until)
            return loop.num_env_steps - before

        advance(FIRST + 500)
        while True:
            before = cpu_s(pids)
            steps = advance(case.steps_per_round)
            yield 1e3 * (cpu_s(pids) - before) / steps


def play_theirs(case: Case, num: int) -> Iterator[float]:
    """Does the same as `play_ours` with Stable-Baselines3."""
    model = case.peer(num)
    model.learn(FIRST + 500)
    while True:
        before, first = time.process_time(), model.num_timesteps
        model.learn(case.steps_per_round, reset_num_timesteps=False)
        yield 1e3 * (time.process_time() - before) / (model.num_timesteps - first)


def update_ours(case: Case) -> Iterator[float]:
    """Yields for each round the processor time of one update, ms."""
    plan = prepare(case.config(), needs_stop=False).servers["one"]
    policies: Any = make_policies(plan, print)
    seat_id, (agent,) = case.algorithm, plan.agents.values()
    rng = np.random.default_rng(0)
    env = gymnasium.make(case.env_id)
    played = Trajectory(
        id=seat_id,
        episode_id=seat_id,
        seat_id=seat_id,
        policy_id=agent.policy_id,
        observations=rng.normal(size=(FIRST + 1, *env.observation_space.shape)),
        actions=np.array([env.action_space.sample() for _ in range(FIRST)]),
        rewards=rng.normal(size=FIRST),
        outputs={},
    )
    trainer = policies.acting.learners[agent.policy_id]
    trainer.replay.add(played)
    num = case.updates_per_round
    while True:
        before = case.clock()
        trainer.make_updates(num)
        yield 1e3 * (case.clock() - before) / num


def batch_ours(case: Case) -> Iterator[float]:
    """Yields the processor time, ms, of all epochs on a batch that eight simulations play."""
    plan = prepare(case.config(), needs_stop=False).servers["one"]
    policies: Any = make_policies(plan, print)
    space = gymnasium.make(case.env_id).observation_space
    names = [f"episode-{i}" for i in range(8)]
    for name in names:
        policies.store.accept(StartEpisode(name), 0.0)
    t = 0
    while True:
        while not policies.feed.unlearned:
            rewards = {"agent": 1.0} if t else {}
            pending = [
                policies.store.accept(
                    Step(name, t, {"agent": np.clip(space.sample(), -1.0, 1.0)}, rewards), 0.0
                )
                for name in names
            ]
            blocks = list(dict.fromkeys(step.blocks[0] for step in pending))
            for block, chosen in zip(blocks, policies.acting.act(blocks), strict=True):
                block.finish(*chosen)
            policies.store.finish_frame()
            t += 1
        before = case.clock()
        policies._learning.train()
        yield 1e3 * (case.clock() - before)


def batch_theirs(case: Case) -> Iterator[float]:
    """Does the same as `batch_ours` with Stable-Baselines3."""
    model = case.peer(8)
    model.learn(case.steps_per_update)
    while True:
        before = case.clock()
        model.train()
        yield 1e3 * (case.clock() - before)


def update_theirs(case: Case) -> Iterator[float]:
    """Does the same as `update_ours` with Stable-Baselines3."""
    model = case.peer(1)
    model.learn(FIRST + 10)
    num = case.updates_per_round
    while True:
        before = case.clock()
        model.train(num, case.batch)
        yield 1e3 * (case.clock() - before) / num


def contest(ours: Iterator[float], theirs: Iterator[float], rounds: int) -> str:
    """Lets both sides play in turn; returns medians and ratios as text."""
    next(ours), next(theirs)  # warms up
    pairs = []
    for number in range(rounds):
        print(f"  round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        pairs.append((next(ours), next(theirs)))
    mine, other = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratios = ", ".join(f"{a / b:.2f}" for a, b in pairs)
    return f"{mine:10.3f}{other:20.3f}   {ratios}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    names = [*CASES, *TEAM_UPDATES]
    parser.add_argument("--cases", nargs="+", choices=names, default=names)
    parser.add_argument("--simulations", type=int, nargs="*", default=[1, 16])
    parser.add_argument("--no-updates", action="store_true", help="whole runs only")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of updates")
    parser.add_argument("--hidden", type=int, help="units of a layer")
    parser.add_argument("--batch", type=int, help="of an update")
    args = parser.parse_args()
    print(f"{'ms of processor time':28}{'ours':>10}{'the other':>20}   ratios")
    for name in args.cases:
        if name in TEAM_UPDATES:
            if args.no_updates or args.device != "cpu":
                continue
            line = contest(team_update_ours(name), team_update_theirs(name), args.rounds)
            print(f"{name + ' update':28}{line}", flush=True)
            continue
        case = replace(CASES[name], device=args.device)
        case = replace(case, hidden=args.hidden or case.hidden, batch=args.batch or case.batch)
        if not args.no_updates:
            ours, theirs = (batch_ours, batch_theirs) if case.num_epochs else (
                update_ours, update_theirs)  # fmt: skip
            line = contest(ours(case), theirs(case), args.rounds)
            print(f"{name + ' update':28}{line}", flush=True)
        for num in args.simulations:
            line = contest(play_ours(case, num), play_theirs(case, num), args.rounds)
            print(f"{name + f' env step, {num} played':28}{line}", flush=True)


if __name__ == "__main__":
    if any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks.learners", *sys.argv[1:]],
                  {**os.environ, **ONE_THREAD})  # fmt: skip
    main()
