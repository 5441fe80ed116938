"""How far an update holds the simulation: steps while a server acts only, and while it learns.

One PPO server in a process of its own, as `muxrl launch` starts it, and simulations that cost
nothing. Each mode changes one thing that may hold a step while an update runs: the gate, the
interpreter lock, torch's threads, the garbage collector. Modes take turns on the same server, so
that a machine whose speed drifts is fair to all.

    python -m benchmarks.let_go --rounds 3 --seconds 10

Prints for each mode the updates' length, the share of it in which the learner waited for the
interpreter lock (all that a process of its own could save it), policy lag, and a step's median,
99th percentile and maximum, with and without an update under way, and how many of the slow steps
(three times idle's 99th percentile) met which part of one.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import ray
from benchmarks.step_path import Serving, serving

from muxrl.client import MultiplexingClient
from muxrl.client.adapters import make_simulation
from muxrl.client.env_loop import EnvLoop
from muxrl.client.multiplexer import Outbox
from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig
from muxrl.orchestrator.supervise.processes import ServerProcess
from muxrl.servers.config import ServerConfig

_SIMULATION = "muxrl.experiments.simulations.zero_cost:ZeroCost"
_PARTS = ("gate", "garbage", "take", "batch", "load", "minibatches", "record")
"""Of an update, the more particular first: a slow step is put down to the first that it meets."""


@dataclass(frozen=True)
class Mode:
    """What is set on the server before a turn.

    Attributes:
        name: in the table.
        max_ahead: batches that the gate lets be ahead.
        switch_s: seconds after which a thread that waits for the interpreter lock asks for it.
        num_threads: of torch, in the learning thread.
        collects_garbage: whether the garbage collector runs by itself.
        hears_progress: whether the gate hears how far an update is; else it holds once a batch.
    """

    name: str
    max_ahead: int = 1
    switch_s: float = 0.005
    num_threads: int = 1
    collects_garbage: bool = True
    hears_progress: bool = True


MODES = {
    mode.name: mode
    for mode in (
        Mode("wait", max_ahead=0),
        Mode("once a batch", hears_progress=False),
        Mode("serve"),
        Mode("2 ahead", max_ahead=2),
        Mode("8 ahead", max_ahead=8),
        Mode("switch 0.5 ms", switch_s=0.0005),
        Mode("2 threads", num_threads=2),
        Mode("no collector", collects_garbage=False),
    )
}

Span = tuple[str, float, float]
"""What, from when, until when; the clock is that of all processes (CLOCK_MONOTONIC)."""


def watched_server() -> type[ServerProcess]:
    """Returns the actor's class, made in here so that it is pickled whole."""

    class Watched(ServerProcess):
        """A server that notes when it does what, and whose settings change while it runs."""

        def start(self) -> tuple[str, int]:
            self.spans: list[Span] = []
            self.blocked: list[float] = []
            policies = self._server.policies
            learner = policies.algo.learner_group._learner
            runner = policies.trainer.env_runner
            self._watch("take", runner, "_log")
            self._watch("batch", learner, "_make_batch_if_necessary")
            self._watch("minibatches", policies.algo.learner_group, "update")
            self._watch("load", runner, "set_state")
            self._watch("record", policies.trainer, "_record")
            self._watch_gate()
            gc.callbacks.append(self._note_garbage)
            return super().start()

        def _watch(self, name: str, owner: Any, method: str) -> None:
            call = getattr(owner, method)

            def watched(*args: Any, **kwargs: Any) -> Any:
                began, busy_s = time.perf_counter(), self._busy_s()
                try:
                    return call(*args, **kwargs)
                finally:
                    ended = time.perf_counter()
                    self.spans.append((name, began, ended))
                    if name == "minibatches":
                        self.blocked.append(1.0 - (self._busy_s() - busy_s) / (ended - began))

            setattr(owner, method, watched)

        def _busy_s(self) -> float:
            """Seconds that this thread has run or sought a processor: all but waits for locks."""
            with open(f"/proc/self/task/{threading.get_native_id()}/schedstat") as told:
                ran, waited, _ = told.read().split()
            return (int(ran) + int(waited)) / 1e9

        def _watch_gate(self) -> None:
            feed = self._server.policies.feed
            when_open = feed.when_open

            def watched(go: Callable[[], None]) -> None:
                if feed.is_open:
                    when_open(go)
                    return
                began = time.perf_counter()

                def went() -> None:
                    self.spans.append(("gate", began, time.perf_counter()))
                    go()

                when_open(went)

            feed.when_open = watched  # type: ignore[method-assign]

        def _note_garbage(self, phase: str, info: Mapping[str, int]) -> None:
            if phase == "start":
                self._garbage_began = time.perf_counter()
            else:
                self.spans.append(("garbage", self._garbage_began, time.perf_counter()))

        def set(self, mode: Any) -> None:
            """Waits until nothing is learned, then changes the settings."""
            import torch

            policies = self._server.policies

            def change() -> None:
                torch.set_num_threads(mode.num_threads)

            while policies.feed.num_ahead:
                time.sleep(0.05)
            policies.trainer.between_updates(change, 60.0)
            policies.feed.max_ahead = mode.max_ahead
            policies.algo.learner_group._learner.note_progress = (
                policies.feed.note_progress if mode.hears_progress else lambda share: None
            )
            sys.setswitchinterval(mode.switch_s)
            (gc.enable if mode.collects_garbage else gc.disable)()
            self.spans.clear()
            self.blocked.clear()

        def take_spans(self) -> tuple[list[Span], list[float], float]:
            """Returns the spans since `set`, the share of each update in which the learner waited
            for the interpreter lock, and the mean policy lag of the last batch."""
            return list(self.spans), list(self.blocked), self._server.policies.policy_lag[0]

        def threads(self) -> list[int]:
            """Returns the system's numbers of the serving and the learning thread."""
            numbers = {thread.name: thread.native_id for thread in threading.enumerate()}
            return [numbers["server"], numbers["trainer"]]

    return Watched


@dataclass
class Turn:
    """What was measured of one mode in one turn.

    Attributes:
        idle: ms of steps while the server only acts.
        steps: ms of those of training.
        parts: what each of `steps` met, as an index of `_PARTS`; -1 if no update was under way.
        env_steps_per_s: of training.
        update_s: seconds of each update.
        blocked: share of each in which the learning thread waited for the interpreter lock.
        lag: versions by which the last batch was behind, mean.
    """

    idle: Steps
    steps: Steps
    parts: np.ndarray
    env_steps_per_s: float
    update_s: list[float]
    blocked: list[float]
    lag: float


class Stamped(MultiplexingClient):
    """Notes of each exchange when it began and ended, and for how long threads sought a processor.

    Args:
        address: of the server.
        threads: what of ``/proc`` says so for the client's thread, and the server's two.
    """

    def __init__(self, address: str, threads: Sequence[str]) -> None:
        super().__init__([address])
        self._threads = [os.open(f"/proc/{thread}/schedstat", os.O_RDONLY) for thread in threads]
        self.rows: list[list[float]] = []

    def exchange(self, outbox: Outbox):  # type: ignore[no-untyped-def]
        before = self._look()
        began = time.perf_counter()
        result = super().exchange(outbox)
        ended = time.perf_counter()
        after = self._look()
        used, *waited = (b - a for a, b in zip(before, after, strict=True))
        self.rows.append([began, ended, used, *waited])
        return result

    def _look(self) -> list[float]:
        """Seconds that all but the learner have run, then those that each thread was runnable."""
        told = [[int(n) / 1e9 for n in os.pread(t, 64, 0).split()] for t in self._threads]
        return [told[0][0] + told[1][0], *(one[1] for one in told)]


@dataclass(frozen=True)
class Steps:
    """Exchanges: ``[n]`` seconds each.

    Attributes:
        began, ended: on the clock of all processes.
        net: the same had no thread waited for a processor: the waits of client and serving thread
            are taken off, and the learner's, who may hold the interpreter lock meanwhile; but never
            what client and serving thread have run.
    """

    began: np.ndarray
    ended: np.ndarray
    net: np.ndarray


def play(
    server: Serving, args: argparse.Namespace, what: Literal["train", "eval"], seconds: float
) -> tuple[Steps, float]:
    """Plays for so long; returns its exchanges, and env steps per second."""
    simulations = [
        make_simulation(_SIMULATION, {"num_agents": args.agents}) for _ in range(args.simulations)
    ]
    threads = [f"self/task/{threading.get_native_id()}"] + [
        f"{server.pid}/task/{thread}" for thread in ray.get(server.actor.threads.remote())
    ]
    with Stamped(server.address, threads) as client:
        loop = EnvLoop(simulations, client, mode=what, should_explore=True)
        started = time.perf_counter()
        loop.run(should_stop=lambda: time.perf_counter() - started > seconds)
        pace = loop.num_env_steps / (time.perf_counter() - started)
        # Without the last exchange, which closes what is open.
        began, ended, used, *waited = np.array(client.rows[:-1]).T
        return Steps(began, ended, np.maximum(used, ended - began - sum(waited))), pace


def what_they_met(began: np.ndarray, ended: np.ndarray, spans: list[Span]) -> np.ndarray:
    """Returns for each step the first of `_PARTS` that it overlaps, -1 for none."""
    parts = np.full(len(began), -1)
    for index in reversed(range(len(_PARTS))):
        for name, start, end in spans:
            if name == _PARTS[index]:
                parts[(began < end) & (ended > start)] = index
    return parts


def take_turn(server: Serving, mode: Mode, args: argparse.Namespace) -> Turn:
    """Sets a mode, and plays first without learning, then with it."""
    ray.get(server.actor.set.remote(mode))
    idle, _ = play(server, args, "eval", args.seconds / 3)
    steps, pace = play(server, args, "train", args.seconds)
    spans, blocked, lag = ray.get(server.actor.take_spans.remote())
    return Turn(
        idle,
        steps,
        what_they_met(steps.began, steps.ended, spans),
        pace,
        [end - start for name, start, end in spans if name == "minibatches"],
        blocked,
        lag,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="of training a turn")
    parser.add_argument("--simulations", type=int, default=1)
    parser.add_argument("--agents", type=int, default=2)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    args = parser.parse_args()
    config = ExperimentConfig(
        name="let_go",
        simulation=SimulationConfig(env=_SIMULATION, kwargs={"num_agents": args.agents}),
        servers={
            "ppo": ServerConfig(
                algorithm="PPO",
                agents=["*"],
                while_learning="serve",
                settings={
                    "train_batch_size_per_learner": 4000,
                    "num_epochs": 10,
                    "minibatch_size": 128,
                },
                model={"fcnet_hiddens": [256, 256], "vf_share_layers": False},
            )
        },
    )
    modes = [MODES[name] for name in args.modes]
    turns: dict[Mode, list[Turn]] = {mode: [] for mode in modes}
    with serving(config, watched_server()) as (server,):
        play(server, args, "train", args.seconds)  # warms up
        for _ in range(args.rounds):
            for mode in modes:
                turns[mode].append(take_turn(server, mode, args))
    show(turns)


def show(turns: Mapping[Mode, list[Turn]]) -> None:
    """Prints the tables."""
    for title, ms_of in (
        ("ms", lambda steps: 1e3 * (steps.ended - steps.began)),
        ("ms, had no thread waited for a processor", lambda steps: 1e3 * steps.net),
    ):
        print(
            f"\n{title:26}{'steps/s':>8}{'update':>8}{'lock %':>8}{'lag':>5}   idle p50   p99"
            "    max   learning p50   p99    max   p99/idle  max/idle"
        )
        for mode, rounds in turns.items():
            rows = []
            for turn in rounds:
                met = turn.parts >= 0
                if not met.any():
                    continue
                idle, now = ms_of(turn.idle), ms_of(turn.steps)[met]
                idle_3 = [*np.percentile(idle, [50, 99]), idle.max()]
                now_3 = [*np.percentile(now, [50, 99]), now.max()]
                rows.append(
                    [
                        turn.env_steps_per_s,
                        statistics.mean(turn.update_s or [np.nan]),
                        100 * statistics.mean(turn.blocked or [np.nan]),
                        turn.lag,
                        *idle_3,
                        *now_3,
                        now_3[1] / idle_3[1],
                        now_3[2] / idle_3[2],
                    ]
                )
            if not rows:
                continue
            m = np.nanmedian(np.array(rows), axis=0)
            print(
                f"{mode.name:26}{m[0]:8,.0f}{m[1]:7.2f}s{m[2]:8.1f}{m[3]:5.1f}"
                f"{m[4]:11.2f}{m[5]:6.1f}{m[6]:7.1f}{m[7]:15.2f}{m[8]:6.1f}{m[9]:7.1f}"
                f"{m[10]:11.1f}{m[11]:10.1f}"
            )
        print(
            "of 1,000 that met an update, slower than 3 times idle's p99, by what they met; longest"
        )
        print(f"{'':26}" + "".join(f"{part:>17}" for part in _PARTS))
        for mode, rounds in turns.items():
            cells = []
            for index in range(len(_PARTS)):
                slow, longest, total = 0, 0.0, 0
                for turn in rounds:
                    limit = 3 * np.percentile(ms_of(turn.idle), 99)
                    mine = ms_of(turn.steps)[turn.parts == index]
                    total += int((turn.parts >= 0).sum())
                    slow += int((mine > limit).sum())
                    longest = max(longest, mine.max(initial=0.0))
                cells.append(f"{1e3 * slow / max(total, 1):8.2f}{longest:9.1f}")
            print(f"{mode.name:26}" + "".join(cells))


if __name__ == "__main__":
    main()
