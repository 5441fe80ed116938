"""Conversations with servers of every kind, to compare what two checkouts make of the same bytes.

A conversation is a list of frames, drawn from a seed: episodes that begin, go on, end, are aborted
or forgotten; agents that end, come late, pause or come back; steps alone and in rows, packed or
not; repeats, and messages that have to be refused. `play` gives them to a server in this process,
as a client's bytes, and returns its answers and what it recorded for its learner, which does not
run. So two checkouts are compared::

    python -m tests.servers.conversations old     # in one checkout: folder "old" is written
    python -m tests.servers.conversations new --compare old    # in the other

says for each kind of server how many answers and trajectories are equal to the last bit. Networks
are as their seed makes them; an answer of a policy that draws is equal where both draw alike.
"""

from __future__ import annotations

import argparse
import dataclasses
import pickle
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import yaml
from tests.servers.packing import answers_of

from muxrl.orchestrator.config import from_yaml, probe, resolve
from muxrl.protocol.codec import decode_batch, decode_batch_reply, encode, encode_batch
from muxrl.protocol.messages import (
    AbortEpisode,
    AnyItem,
    AnyReply,
    Batch,
    BatchReply,
    EndEpisode,
    StartEpisode,
    Step,
    StepRows,
)
from muxrl.protocol.rows import Layout, stack
from muxrl.protocol.spaces import (
    Box,
    DictSpace,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
    TupleSpace,
)
from muxrl.servers.config import ServerPlan
from muxrl.servers.episodes.trajectories import Chunk
from muxrl.servers.server import PolicyServer

BOX = {"type": "box", "shape": [3]}
DISCRETE = {"type": "discrete", "n": 4}
MASKED = {
    "type": "dict",
    "spaces": {
        "obs": BOX,
        "action_mask": {"type": "box", "shape": [3], "low": 0, "high": 1, "dtype": "int8"},
    },
}
THREE = {"type": "discrete", "n": 3}
LEVER = {"type": "box", "shape": [2], "low": -1, "high": 1}
SMALL = {"fcnet_hiddens": [8]}
TEAM = {"groups": {"team": ["agent_*"]}}


def _kind(
    algorithm: str,
    observations: Mapping[str, Any] | None = None,
    action: Mapping[str, Any] = THREE,
    simulation: Mapping[str, Any] | None = None,
    **server: Any,
) -> dict[str, Any]:
    agents = observations or dict.fromkeys(("agent_0", "agent_1", "agent_2"), BOX)
    spaces = {a: {"observation_space": s, "action_space": action} for a, s in agents.items()}
    served = {"algorithm": algorithm, "agents": ["*"], **server}
    return {
        "simulation": {"env": "external", "agents": spaces, **(simulation or {})},
        "servers": {"one": served},
    }


ALL_MASKED = dict.fromkeys(("agent_0", "agent_1", "agent_2"), MASKED)
KINDS: dict[str, dict[str, Any]] = {
    "PPO": _kind("PPO", model=SMALL),
    "PPO, three kinds": _kind(
        "PPO", {"agent_0": BOX, "agent_1": DISCRETE, "agent_2": MASKED}, model=SMALL
    ),
    "PPO, masks": _kind("PPO", ALL_MASKED, model=SMALL),
    "PPO, recurrent": _kind("PPO", model={"use_lstm": True, "lstm_cell_size": 8, **SMALL}),
    "PPO, lives": _kind("PPO", simulation={"respawn": "same_id"}, model=SMALL),
    "A2C, scaled and stacked": _kind(
        "A2C", normalize_observations=True, normalize_rewards=True, frame_stack=2, model=SMALL
    ),
    "IMPALA": _kind("IMPALA", model=SMALL),
    "DQN": _kind("DQN", model=SMALL),
    "DQN, logged actions": _kind("DQN", model=SMALL),
    "SAC": _kind("SAC", action=LEVER, model=SMALL),
    "QMIX": _kind("QMIX", simulation={"state_size": 4}, **TEAM),
    "QMIX, late members": _kind("QMIX", ALL_MASKED, late_members="allow", **TEAM),
    "VDN": _kind("VDN", settings={"agent": "mlp"}, **TEAM),
    "MAPPO": _kind("MAPPO", simulation={"state_size": 4}, model=SMALL, **TEAM),
    "HAPPO": _kind("HAPPO", model=SMALL, **TEAM),
    "MASAC": _kind("MASAC", action=LEVER, **TEAM),
    "MADDPG": _kind("MADDPG", action=LEVER, **TEAM),
    "RANDOM": _kind("RANDOM", ALL_MASKED),
}
"""By name, a config of one server; its training batches are small, so that episodes are cut."""


def plan_of(config: Mapping[str, Any]) -> ServerPlan:
    """Returns the plan of a config's only server."""
    experiment = from_yaml(
        yaml.safe_dump({"name": "talk", **config, "stop": {"env_steps": 100_000}})
    )
    resolved = resolve(experiment, probe(experiment.simulation))
    return dataclasses.replace(resolved.servers["one"], seed=3)


class Talk:
    """Draws the frames of one conversation.

    Args:
        plan: of the server that is spoken to.
        seed: of the draws.
        num_frames: how many.
        logs_actions: whether some agents act by themselves, and say what they did.
    """

    def __init__(self, plan: ServerPlan, seed: int, num_frames: int, *, logs_actions: bool) -> None:
        self.plan = plan
        self.logs_actions = logs_actions
        self.rng = np.random.default_rng(seed)
        self.num_frames = num_frames
        self.t: dict[str, int] = {}
        self.here: dict[str, set[str]] = {}
        """Of each open episode, the agents that have not ended."""
        self.began = 0
        self.last: list[AnyItem] = []

    def frames(self) -> Iterator[list[AnyItem]]:
        """Yields the items of each frame."""
        for _ in range(self.num_frames):
            if self.last and self.rng.random() < 0.05:
                yield self.last  # once more: nothing was heard
                continue
            items = [*self._starts(), *self._steps()]
            if self.rng.random() < 0.1:
                items.insert(int(self.rng.integers(len(items) + 1)), self._wrong())
            self.last = items
            if items:
                yield items

    def _starts(self) -> Iterator[AnyItem]:
        while len(self.t) < 6 and self.rng.random() < 0.7:
            episode_id = f"e{self.began}"
            self.began += 1
            self.t[episode_id] = 0
            self.here[episode_id] = set(self.plan.agents)
            mode = "eval" if self.rng.random() < 0.2 else "train"
            yield StartEpisode(episode_id, mode=mode, seed=self.began)  # type: ignore[arg-type]

    def _steps(self) -> Iterator[AnyItem]:
        in_rows: dict[tuple[str, ...], list[str]] = {}
        is_packed = self.rng.random() < 0.5
        for episode_id in list(self.t):
            chance = self.rng.random()
            if chance < 0.1:
                continue  # it is slow
            if self.t[episode_id] and chance < 0.16:
                yield self._last_of(episode_id)
            elif is_packed and chance < 0.8 and self._acting(episode_id):
                in_rows.setdefault(tuple(self._acting(episode_id)), []).append(episode_id)
            else:
                yield self._step(episode_id)
        for agents, episode_ids in in_rows.items():
            yield self._rows(agents, episode_ids)

    def _acting(self, episode_id: str) -> list[str]:
        return [agent_id for agent_id in self.plan.agents if agent_id in self.here[episode_id]]

    def _last_of(self, episode_id: str) -> AnyItem:
        t = self.t.pop(episode_id)
        here = self.here.pop(episode_id)
        kind = self.rng.random()
        if kind < 0.25:
            return AbortEpisode(episode_id, "enough")
        is_truncated = kind < 0.6
        finals = {a: self._value(self._sees(a)) for a in sorted(here)} if is_truncated else {}
        return EndEpisode(
            episode_id,
            t,
            is_truncated=is_truncated,
            rewards=self._rewards(sorted(here)),
            final_observations=finals,
            state=self._state(),
        )

    def _step(self, episode_id: str) -> Step:
        t, here = self.t[episode_id], self.here[episode_id]
        self.t[episode_id] += 1
        acting = self._acting(episode_id)
        terminations: dict[str, bool] = {}
        truncations: dict[str, bool] = {}
        finals: dict[str, Any] = {}
        rewards = self._rewards(acting) if t else {}
        if t and len(acting) > 1 and self.rng.random() < 0.08:
            gone = acting[int(self.rng.integers(len(acting)))]
            here.discard(gone)
            if self.rng.random() < 0.5:
                terminations[gone] = True
            else:
                truncations[gone] = True
                finals[gone] = self._value(self._sees(gone))
            if not self.plan.agents_return and self.rng.random() < 0.3:
                rewards[gone] = 0.5
        elif self.plan.agents_return and self.rng.random() < 0.2:
            here.update(self.plan.agents)  # all are back
        elif (not self.plan.groups or self.plan.late_members == "allow") and (
            len(acting) > 1 and self.rng.random() < 0.1
        ):
            acting = acting[1:]  # one pauses
        acting = [a for a in self.plan.agents if a in here and (a in acting or a not in rewards)]
        logged: dict[str, Any] = {}
        if self.logs_actions and self.rng.random() < 0.3:
            logged = {a: self._value(self.plan.agents[a].action_space) for a in acting}
        return Step(
            episode_id,
            t,
            {a: self._value(self._sees(a)) for a in acting},
            rewards,
            terminations=terminations,
            truncations=truncations,
            final_observations=finals,
            logged_actions=logged,
            state=self._state(),
        )

    def _rows(self, agents: tuple[str, ...], episode_ids: list[str]) -> StepRows:
        layout = Layout(agents, self.plan.agents)
        t = np.array([self.t[episode_id] for episode_id in episode_ids], np.int64)
        for episode_id in episode_ids:
            self.t[episode_id] += 1
        lead = len(episode_ids)
        rewards = self.rng.normal(size=(lead, len(agents))) * (t > 0)[:, None]
        states = None
        if self.plan.state_size is not None:
            states = self.rng.random((lead, self.plan.state_size), np.float32)
        return StepRows(
            episode_ids=episode_ids,
            t=t,
            agents=[] if agents == tuple(self.plan.agents) else list(agents),
            observations=[
                stack(
                    kind.space,
                    [self._value(kind.space) for _ in range(lead * len(kind.agents))],
                    (lead, len(kind.agents)),
                )
                for kind in layout.observed
            ],
            rewards=rewards,
            state=states,
        )

    def _wrong(self) -> AnyItem:
        """Returns what has to be refused."""
        episode_id = next(iter(self.t), "nobody")
        agent_id = next(iter(self.plan.agents))
        t, space = self.t.get(episode_id, 0), self._sees(agent_id)
        seen = {agent_id: self._value(space)}
        one = int(self.rng.integers(5))
        if one == 0:
            return Step("nobody", 0, seen)
        if one == 1:
            return Step(episode_id, t + 7, seen)
        if one == 2:
            return Step(episode_id, t, {agent_id: "no observation"})
        if one == 3:
            return Step(episode_id, t, {"stranger": self._value(space)})
        return EndEpisode(episode_id, t + 3)

    def _sees(self, agent_id: str) -> Space:
        return self.plan.agents[agent_id].observation_space

    def _rewards(self, agents: list[str]) -> dict[str, float]:
        return {agent_id: float(self.rng.normal()) for agent_id in agents}

    def _state(self) -> Any:
        size = self.plan.state_size
        return None if size is None else self.rng.random(size, np.float32)

    def _value(self, space: Space) -> Any:
        rng = self.rng
        if isinstance(space, DictSpace):
            value = {key: self._value(sub) for key, sub in space.spaces.items()}
            if "action_mask" in value:
                value["action_mask"][int(rng.integers(len(value["action_mask"])))] = 1
            return value
        if isinstance(space, TupleSpace):
            return tuple(self._value(sub) for sub in space.spaces)
        if isinstance(space, Discrete):
            return space.start + int(rng.integers(space.n))
        if isinstance(space, MultiDiscrete):
            return rng.integers(space.nvec)
        if isinstance(space, MultiBinary):
            return rng.integers(2, size=space.n)
        assert isinstance(space, Box)
        if np.dtype(space.dtype).kind in "iu":
            return rng.integers(0, 2, space.shape).astype(space.dtype)
        return rng.random(space.shape).astype(space.dtype)


def frames_of(name: str, plan: ServerPlan, seed: int, num_frames: int) -> list[bytes]:
    """Returns a conversation with a kind of server as a client's bytes."""
    talk = Talk(plan, seed, num_frames, logs_actions=name.endswith("logged actions"))
    return [encode_batch(Batch(items), as_json=False) for items in talk.frames()]


def play(
    plan: ServerPlan, frames: list[bytes], batch_env_steps: int = 40
) -> tuple[list[AnyReply], list[dict[str, Any]]]:
    """Returns a server's answers to some frames, step by step, and the trajectories it recorded.

    Args:
        plan: the server; it neither listens nor learns.
        frames: one after another, each alone on the connection.
        batch_env_steps: after so many, what is open is cut.
    """
    server = PolicyServer(plan)
    replies: list[AnyReply] = []
    recorded: list[dict[str, Any]] = []
    try:
        policies = server.policies
        policies.store._batches._env_steps = batch_env_steps
        policies.feed.put = lambda batch: recorded.extend(map(plain_chunk, batch))  # type: ignore[method-assign]
        for frame in frames:
            answer: list[AnyReply] = []
            items = decode_batch(frame).items
            server._app.answer(items, answer.extend, is_alone=True)
            sent = encode(BatchReply(answer)).replace(server.address.encode(), b"127.0.0.1:00000")
            replies += answers_of(plan.agents, items, decode_batch_reply(sent).replies)
    finally:
        server.stop()
    return replies, recorded


def as_dicts(answer: Any) -> Any:
    """Returns answers as dicts."""
    if isinstance(answer, list):
        return [as_dicts(one) for one in answer]
    if isinstance(answer, msgspec.Struct):
        return {"type": type(answer).__name__, **as_dicts(msgspec.structs.asdict(answer))}
    if isinstance(answer, dict):
        return {key: as_dicts(one) for key, one in answer.items()}
    return answer


def plain_chunk(chunk: Chunk) -> dict[str, Any]:
    """Returns a chunk as dicts and arrays."""
    trajectories = [dict(each_field(one)) for one in chunk.trajectories]
    return {"episode": chunk.episode_id, "trajectories": trajectories}


def each_field(one: Any) -> Iterator[tuple[str, Any]]:
    """Yields the fields of a dataclass that are there."""
    for field in dataclasses.fields(one):
        if getattr(one, field.name) is not None:
            yield field.name, getattr(one, field.name)


def differences(a: Any, b: Any, at: str = "") -> Iterator[str]:
    """Yields where two answers or trajectories differ, to the last bit."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in a.keys() | b.keys():
            if key in a and key in b:
                yield from differences(a[key], b[key], f"{at}.{key}")
            else:
                yield f"{at}.{key}: only in one"
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        for i, (one, other) in enumerate(zip(a, b, strict=True)):
            yield from differences(one, other, f"{at}[{i}]")
    elif isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        if not np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True):
            yield f"{at}: {a!r} is {b!r}"
    elif a != b and not (a != a and b != b):
        yield f"{at}: {a!r} is {b!r}"


def _main() -> int:
    parser = argparse.ArgumentParser(description="Compares two checkouts on the same bytes.")
    parser.add_argument("folder", type=Path, help="where answers and trajectories are written")
    parser.add_argument("--compare", type=Path, help="a folder that another checkout wrote")
    parser.add_argument("--frames", type=int, default=300)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    num_different = 0
    for name, config in KINDS.items():
        file = f"{name.replace(', ', '-').replace(' ', '-')}.pickle"
        plan = plan_of(config)
        if args.compare:
            then = pickle.loads((args.compare / file).read_bytes())
            frames = then["frames"]
        else:
            frames = frames_of(name, plan, 1, args.frames)
        replies, recorded = play(plan, frames)
        answers = as_dicts(replies)
        now = {"frames": frames, "answers": answers, "recorded": recorded}
        (args.folder / file).write_bytes(pickle.dumps(now))
        said = f"{name}: {len(answers)} answers, {len(recorded)} pieces of episodes"
        if args.compare:
            for what in ("answers", "recorded"):
                found = list(differences(then[what], now[what], what))
                num_different += len(found)
                said += f"; {len(found)} differences in {what}" + "".join(
                    f"\n    {one[:200]}" for one in found[:5]
                )
        print(said, flush=True)  # noqa: T201
    return 1 if num_different else 0


if __name__ == "__main__":
    sys.exit(_main())
