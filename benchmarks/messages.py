"""Times a message on a policy server, bytes to bytes: checking, recording and acting.

    OMP_NUM_THREADS=1 python -m benchmarks.messages

Prints microseconds of processor time of a message, as medians over rounds in turn, on the servers
of `step_path.yaml`, all in one process. Episodes of 100 steps begin and end together; the columns
have only messages of steps. No server learns. To compare two checkouts, run both in turn.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from muxrl.orchestrator.config import load_config, prepare
from muxrl.protocol.codec import encode, encode_batch
from muxrl.protocol.messages import (
    AnyItem,
    Batch,
    BatchReply,
    EndEpisode,
    Mode,
    StartEpisode,
    Step,
    StepRows,
)
from muxrl.servers.server import PolicyServer

CONFIG = Path(__file__).with_name("step_path.yaml")
EPISODE_STEPS = 100
CASES = {
    "1 step": (1, False),
    "1 row": (1, True),
    "16 steps": (16, False),
    "16 rows": (16, True),
    "256 rows": (256, True),
}
"""The number of episodes that share a message, and whether they are sent as rows."""


class Talk:
    """Plays lockstep episodes with a server.

    Args:
        server: a server that neither listens nor learns.
        num: number of episodes in each message.
        is_rows: whether steps are sent as a `StepRows`.
        mode: of the episodes.
    """

    def __init__(self, server: PolicyServer, num: int, *, is_rows: bool, mode: Mode) -> None:
        self.server, self.num, self.is_rows, self.mode = server, num, is_rows, mode
        self.agents = list(server.plan.agents)
        self.rng = np.random.default_rng(0)
        self.num_begun = 0
        self.prefix = f"{mode}-{num}-{is_rows}-"

    def episodes(self) -> Iterator[tuple[list[AnyItem], bool]]:
        """Yields the messages of `num` episodes, and whether each is a step after the first."""
        ids = [f"{self.prefix}{self.num_begun + i}" for i in range(self.num)]
        self.num_begun += self.num
        yield [StartEpisode(one, mode=self.mode, should_explore=True) for one in ids], False
        for t in range(EPISODE_STEPS):
            yield self._steps(ids, t), t > 0
        rewards = dict.fromkeys(self.agents, 1.0)
        yield [EndEpisode(one, EPISODE_STEPS, rewards=rewards) for one in ids], False

    def _steps(self, ids: list[str], t: int) -> list[AnyItem]:
        seen = self.rng.random((self.num, len(self.agents), 8), np.float32)
        if not self.is_rows:
            rewards = dict.fromkeys(self.agents, 1.0) if t else {}
            return [
                Step(one, t, dict(zip(self.agents, own, strict=True)), rewards)
                for one, own in zip(ids, seen, strict=True)
            ]
        pay = np.ones((self.num, len(self.agents))) if t else None
        ts = np.full(self.num, t, np.int64)
        return [StepRows(episode_ids=ids, t=ts, observations=[seen], rewards=pay)]

    def play(self) -> list[float]:
        """Plays `num` episodes; returns the microseconds of each message of steps."""
        took = []
        server = self.server._app
        for items, is_step in self.episodes():
            frame = encode_batch(Batch(items))
            answer: list[Any] = []
            began = time.process_time()
            server.answer(server.messages.read(frame), answer.extend, is_alone=True)
            encode(BatchReply(answer))
            if is_step:
                took.append((time.process_time() - began) * 1e6)
            assert server.num_refused == 0
        return took


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="of two episodes each")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    args = parser.parse_args()
    plans = prepare(load_config(CONFIG), needs_stop=False).servers
    servers = {server_id: PolicyServer(plan) for server_id, plan in plans.items()}
    talks = {}
    for server_id, server in servers.items():
        server.policies.feed.put = lambda batch: None  # type: ignore[method-assign]
        for mode in ("eval", "train"):
            for name in args.cases:
                num, is_rows = CASES[name]
                talk = Talk(server, num, is_rows=is_rows, mode=mode)  # type: ignore[arg-type]
                talks[server_id, mode, name] = talk
    gc.disable()  # a collection looks through all of RLlib, in anybody's turn
    rounds: dict[Any, list[list[float]]] = {key: [] for key in talks}
    for _ in range(args.rounds + 1):
        for key, talk in talks.items():
            rounds[key].append(talk.play() + talk.play())
    for mode, doing in (("eval", "acting"), ("train", "recording")):
        print(f"{doing:<12}" + "".join(f"{one:>8}{'mean':>8}{'worst':>8}" for one in servers))
        for name in args.cases:
            line = f"{name:<12}"
            for server_id in servers:
                own = rounds[server_id, mode, name][1:]  # without the warm-up
                middle = min(map(statistics.median, own))
                mean = statistics.median(map(statistics.fmean, own))
                line += f"{middle:8.1f}{mean:8.1f}{statistics.median(map(max, own)):8.0f}"
            print(line)
    for server in servers.values():
        server.stop()


if __name__ == "__main__":
    main()
