"""Conversations with servers of every kind, drawn from a seed.

A conversation is a list of frames. Episodes begin, go on, end, are aborted or left open; agents
end, come late, pause or come back; steps come alone and in rows, packed or not; some messages are
repeated, and some have to be refused. `play` gives a conversation to a server in this process, as a
client's bytes, and returns the server's answers and what it recorded for its learner, which does
not run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from tests.servers.packing import answers_of, rows_of

from muxrl.orchestrator.config import load_config, probe
from muxrl.orchestrator.config.resolve import resolve
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
from muxrl.protocol.spaces import (
    DictSpace,
    Discrete,
    Space,
    TupleSpace,
)
from muxrl.protocol.values import sample
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
"""By name: the config of one server. Its training batches are small, so that episodes are cut."""


def plan_of(config: Mapping[str, Any]) -> ServerPlan:
    """Returns the plan of a config's only server."""
    experiment = load_config({"name": "talk", **config, "stop": {"env_steps": 100_000}})
    resolved = resolve(experiment, probe(experiment.simulation))
    return dataclasses.replace(resolved.servers["one"], seed=3)


class Talk:
    """Draws the frames of one conversation.

    Args:
        plan: of the server.
        seed: of the draws.
        num_frames: how many frames to draw.
        logs_actions: whether some agents act by themselves, and their actions are logged.
    """

    def __init__(self, plan: ServerPlan, seed: int, num_frames: int, *, logs_actions: bool) -> None:
        self.plan = plan
        self.logs_actions = logs_actions
        self.rng = np.random.default_rng(seed)
        self.num_frames = num_frames
        self.t: dict[str, int] = {}
        self.here: dict[str, set[str]] = {}
        """By open episode: the agents that have not ended."""
        self.began = 0
        self.last: list[AnyItem] = []

    def frames(self) -> Iterator[list[AnyItem]]:
        """Yields the items of each frame."""
        for _ in range(self.num_frames):
            if self.last and self.rng.random() < 0.05:
                yield self.last  # sent again, as if the answer had been lost
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
                continue  # the episode is slow
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
            here.update(self.plan.agents)  # all agents are back
        elif (not self.plan.groups or self.plan.late_members == "allow") and (
            len(acting) > 1 and self.rng.random() < 0.1
        ):
            acting = acting[1:]  # one agent pauses
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
        steps = []
        for episode_id in episode_ids:
            t = self.t[episode_id]
            self.t[episode_id] += 1
            seen = {a: self._value(self._sees(a)) for a in agents}
            rewards = self._rewards([*agents]) if t else {}
            steps.append(Step(episode_id, t, seen, rewards, state=self._state()))
        wrong, last = int(self.rng.integers(12)), steps[-1]
        if wrong == 0:
            steps.append(last)
        elif wrong < 4:
            self.t[last.episode_id] -= 1
            if wrong == 1:
                last.episode_id = "nobody"
            elif wrong == 2:
                last.t = max(last.t - 1, 0)
            else:
                agent_id = agents[-1]
                value = last.observations[agent_id]
                last.observations[agent_id] = wrong_value(self._sees(agent_id), value)
        return rows_of(self.plan.agents, steps)

    def _wrong(self) -> AnyItem:
        """Returns an item that the server has to refuse."""
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
        value = sample(space, self.rng)
        if isinstance(space, DictSpace) and "action_mask" in value:
            mask = value["action_mask"]
            mask[int(self.rng.integers(len(mask)))] = 1
        return value


def wrong_value(space: Space, value: Any) -> Any:
    """Returns a value that is like `value` but not of its space, or whose mask is all zeros."""
    if isinstance(space, DictSpace):
        return {key: wrong_value(sub, value[key]) for key, sub in space.spaces.items()}
    if isinstance(space, TupleSpace):
        return tuple(wrong_value(s, part) for s, part in zip(space.spaces, value, strict=True))
    if isinstance(space, Discrete):
        return value + space.n
    return value * (np.nan if value.dtype.kind == "f" else 0)


def frames_of(name: str, plan: ServerPlan, seed: int, num_frames: int) -> list[bytes]:
    """Returns a conversation with a server of this kind as a client's bytes."""
    talk = Talk(plan, seed, num_frames, logs_actions=name.endswith("logged actions"))
    return [encode_batch(Batch(items), as_json=False) for items in talk.frames()]


def play(plan: ServerPlan, frames: list[bytes]) -> tuple[list[AnyReply], list[Chunk]]:
    """Returns a server's answers to some frames, one for each step, and what it recorded.

    Args:
        plan: of the server, which neither listens nor learns.
        frames: one after another, each the only one that waits.
    """
    server = PolicyServer(plan)
    replies: list[AnyReply] = []
    recorded: list[Chunk] = []
    try:
        policies = server.policies
        batches = policies.store._batches
        batches._rule = batches._rule._replace(env_steps=40)
        policies.feed.put = recorded.extend  # type: ignore[method-assign]
        for frame in frames:
            answer: list[AnyReply] = []
            items = decode_batch(frame).items
            server._app.answer(items, answer.extend, is_alone=True)
            sent = encode(BatchReply(answer)).replace(server.address.encode(), b"127.0.0.1:00000")
            replies += answers_of(plan.agents, items, decode_batch_reply(sent).replies)
    finally:
        server.stop()
    return replies, recorded
