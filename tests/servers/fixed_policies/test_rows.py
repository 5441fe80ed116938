"""Policies that do not learn act on steps in rows as on the same steps one by one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.servers.fixed_policies.test_fixed_policies import FIVE, SEES, make, plan, resumed
from tests.servers.fixed_policies.test_pool import certain
from tests.servers.packing import Packing
from tests.servers.scripted_store import spec_of

from muxrl.protocol.messages import (
    ActionRows,
    Actions,
    EndEpisode,
    Started,
    StartEpisode,
    Status,
    Step,
    StepRows,
)
from muxrl.protocol.spaces import Box, DictSpace, Discrete, MultiDiscrete, Space, TupleSpace
from muxrl.protocol.values import sample
from muxrl.servers.app import PolicyServerApp
from muxrl.servers.config import AgentPlan, ServerPlan
from muxrl.servers.server import make_policies

MASKED = DictSpace({"seen": Box((2,)), "action_mask": Box((5,), "int8", 0.0, 1.0)})
is_weary: list[bool] = []
"""Whether policies of `make_weary` fail: if there is something in it."""


def make_masked(agent_id: str, observation_space: Any, action_space: Any, seed: int) -> Any:
    """Takes an available action by its own count of steps, and its seed."""
    count = iter(range(10**6))

    def act(observation: Any) -> int:
        available = np.flatnonzero(observation["action_mask"])
        return int(available[(next(count) + seed) % len(available)])

    return act


def make_weary(*args: Any) -> Any:
    act = make_masked(*args)
    return lambda observation: 1 // 0 if is_weary else act(observation)


def make_echo(agent_id: str, observation_space: Any, action_space: Any, seed: int) -> Any:
    """Acts as it observes; each value is as in a step that came alone."""

    def act(observation: Any) -> Any:
        assert observation_space.contains(observation), observation
        return observation

    return act


class Client:
    """Tells a server of steps in rows where it can, or one by one, in messages that are alike."""

    def __init__(self, given: ServerPlan, *, in_rows: bool) -> None:
        self.policies: Any = make(given)
        spec = spec_of(given)
        self._app = PolicyServerApp(
            spec, "here", "", policies=self.policies, status=lambda: Status("fixed", "ready")
        )  # fmt: skip
        self.packing = Packing(spec)
        self.in_rows = in_rows
        self.num_in_rows = 0

    def tell(self, items: list[Any], *, are_new: bool = True) -> list[Any]:
        told = self.packing.pack(items) if self.in_rows else items
        replies: list[Any] = []
        self._app.answer(told, replies.extend, is_alone=True)
        for item, reply in zip(told, replies, strict=True):
            if isinstance(item, StepRows) and isinstance(reply, ActionRows):
                assert bool(reply.replies) is not are_new, "they were read one by one"
                self.num_in_rows += len(item.episode_ids)
        return self.packing.unpack(replies) if self.in_rows else replies


class Game:
    """Episodes of several lengths, begun and ended turn by turn, the same whoever is told."""

    def __init__(
        self, agents: Mapping[str, AgentPlan], *, num: int, seed: int = 0, name: str = ""
    ) -> None:
        self.spaces = {agent_id: agent.observation_space for agent_id, agent in agents.items()}
        self.rng = np.random.default_rng(seed)
        self.name = name
        self.at: list[list[int]] = [[i, 0] for i in range(num)]
        """Number and next step of each open episode."""
        self.last = num
        self.has_seeds = False

    def turn(self, mode: Any = "train") -> list[Any]:
        ends: list[Any] = []
        starts: list[Any] = []
        steps: list[Any] = []
        for one in self.at:
            if one[1] and self.rng.random() < 0.2:
                ends.append(self._end(one))
                one[:] = self.last, 0
                self.last += 1
            e, t = f"{self.name}{one[0]}", one[1]
            if t == 0:
                seed = one[0] if self.has_seeds else None
                starts.append(StartEpisode(e, mode=mode, should_explore=True, seed=seed))
            seen = {agent: self._drawn(space) for agent, space in self.spaces.items()}
            steps.append(Step(e, t, seen, dict.fromkeys(self.spaces, 0.5) if t else {}))
            one[1] += 1
        return ends + starts + steps

    def end(self) -> list[Any]:
        return [self._end(one) for one in self.at]

    def _end(self, one: list[int]) -> EndEpisode:
        return EndEpisode(f"{self.name}{one[0]}", one[1], rewards={"a": 1.0})

    def _drawn(self, space: Space) -> Any:
        value = sample(space, self.rng)
        if space == MASKED:
            value["action_mask"] = np.array(self.rng.permutation([1, 1, 0, 0, 1]), np.int8)
        return value


def plain(value: Any) -> Any:
    """A value in a form that compares equal."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return np.asarray(value).dtype.name, np.asarray(value).tolist()


def compare(clients: list[Client], items: list[Any]) -> dict[str, Any]:
    """Returns who plays, or what agents do, by episode, once it is known to be the same."""
    found = []
    for client in clients:
        replies = client.tell(items)
        started = {f"{r.episode_id} by": r.member for r in replies if isinstance(r, Started)}
        acted = {r.episode_id: plain(r.actions) for r in replies if isinstance(r, Actions)}
        assert len(acted) == sum(isinstance(item, Step) for item in items)
        found.append(started | acted)
    for other in found[1:]:
        assert other == found[0]
    return found[0]


def play(clients: list[Client], game: Game, num_turns: int, mode: Any = "train") -> dict[str, Any]:
    """Plays so many turns, and ends all episodes; returns what `compare` does of all."""
    found = {}
    for turn in range(num_turns):
        found |= {f"{turn} {key}": what for key, what in compare(clients, game.turn(mode)).items()}
    for client in clients:
        client.tell(game.end())
    return found


# --- without networks -----------------------------------------------------------------------

PAIR = TupleSpace((Discrete(3, start=1), Box((2, 2))))
NESTED = DictSpace({"x": Discrete(4), "y": PAIR})
SPACES: dict[str, tuple[str, tuple[Space, Space], tuple[Space, Space]]] = {
    "random, masked": ("RANDOM", (MASKED, FIVE), (MASKED, FIVE)),
    "random, two kinds": (
        "RANDOM",
        (SEES, MultiDiscrete((2, 3))),
        (Discrete(3), Box((2,), "float32", -1.0, 1.0)),
    ),
    "scripted, masked": ("make_masked", (MASKED, FIVE), (MASKED, FIVE)),
    "scripted, composite": ("make_echo", (PAIR, PAIR), (NESTED, NESTED)),
    "scripted, no dimension": ("make_echo", (Box(()), Box(())), (Box(()), Box(()))),
}


@pytest.mark.parametrize("name", SPACES)
def test_plain_policies_act_in_rows_as_one_by_one(name: str) -> None:
    what, *spaces = SPACES[name]
    given = plan("RANDOM", FIVE)
    if what != "RANDOM":
        given = plan("SCRIPTED", FIVE, policy=f"{__name__}:{what}")
    agents = {
        agent: dataclasses.replace(one, observation_space=sees, action_space=acts)
        for (agent, one), (sees, acts) in zip(given.agents.items(), spaces, strict=True)
    }
    given = dataclasses.replace(given, agents=agents)
    clients = [Client(given, in_rows=in_rows) for in_rows in (False, True)]
    for mode in ("train", "eval", "train"):
        game = Game(agents, num=3, name=f"{mode}{clients[1].num_in_rows}-")
        game.has_seeds = mode == "eval"
        play(clients, game, 8, mode)
    assert clients[1].num_in_rows == 3 * 3 * 8
    one, other = (client.policies for client in clients)
    assert one.store.counts == other.store.counts
    assert one.acting.get_random_state() == other.acting.get_random_state()


# --- pools ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def learners(rllib: None, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Returns three checkpoints, the third of which normalises, and who has saved the first."""
    folder = tmp_path_factory.mktemp("members")
    found = []
    for seed in range(3):
        ppo = dataclasses.replace(
            plan("PPO", FIVE, MASKED), server_id="main", settings={}, seed=seed,
            model={"fcnet_hiddens": [8]}, normalize_observations=seed == 2,
        )  # fmt: skip
        policies: Any = make_policies(ppo, pytest.fail)
        found.append(str(policies.save(folder / str(seed))))
        if seed == 0:
            live = policies.live()
        policies.close()
    return found, live


def pool_plan(checkpoints: list[str]) -> ServerPlan:
    frozen = [{"algorithm": "FROZEN", "checkpoint": path} for path in checkpoints]
    members = {
        "first": {**frozen[0], "should_explore": True},
        "second": frozen[1],
        "normalises": {**frozen[2], "should_explore": True},
        "chance": {"algorithm": "RANDOM"},
        "script": {"algorithm": "SCRIPTED", "policy": f"{__name__}:make_masked"},
        "now": {"live": "main"},
        "past": {"snapshots": "main", "last": 1},
    }
    return plan("POOL", FIVE, MASKED, members=members)


def pool_in_two_ways(given: ServerPlan, learners: Any) -> list[Client]:
    checkpoints, live = learners
    clients = []
    for in_rows in (False, True):
        clients.append(Client(given, in_rows=in_rows))
        clients[-1].policies.take("main", {100: checkpoints[0]}, live)
    return clients


def test_members_of_all_kinds_act_in_rows_as_one_by_one(learners: Any) -> None:
    checkpoints, live = learners
    given = pool_plan(checkpoints)
    clients = pool_in_two_ways(given, learners)
    game = Game(given.agents, num=12)
    found: dict[str, Any] = {}
    for turn in range(24):
        if turn == 12:  # in the middle of episodes, also of members that go
            newer = certain(live, 2)
            for client in clients:
                client.policies.take("main", {200: checkpoints[1]}, newer)
        found |= compare(clients, game.turn())
    by = {what for key, what in found.items() if key.endswith(" by")}
    assert by == {*given.settings["members"]} - {"past"} | {"past@100", "past@200"}
    assert clients[1].num_in_rows == 12 * 24
    play(clients, Game(given.agents, num=12, name="eval "), 6, "eval")
    one, other = (client.policies for client in clients)
    assert one.store.counts == other.store.counts
    states = [plain(policies.acting.get_random_state()) for policies in (one, other)]
    assert states[0] == states[1]


def test_newer_weights_act_in_rows_at_once(learners: Any) -> None:
    checkpoints, live = learners
    members = {
        "now": {"live": "main"},
        "first": {"algorithm": "FROZEN", "checkpoint": checkpoints[0]},
    }
    given = plan("POOL", FIVE, MASKED, members=members)
    client, game = Client(given, in_rows=True), Game(given.agents, num=8)
    client.policies.take("main", {}, live)
    started = compare([client], game.turn())
    for action in (1, 4):
        client.policies.take("main", {}, certain(live, action))
        items = game.turn()
        found = compare([client], items)
        started |= found
        for item in items:
            if isinstance(item, Step) and started[f"{item.episode_id} by"] == "now":
                for agent_id, seen in item.observations.items():
                    if seen["action_mask"][action]:
                        assert found[item.episode_id][agent_id][1] == action


def test_a_resumed_pool_goes_on_in_rows(learners: Any, tmp_path: Path) -> None:
    given = pool_plan(learners[0])
    whole = pool_in_two_ways(given, learners)
    play(whole, Game(given.agents, num=10), 9)
    for client, name in zip(whole, ("single", "rows"), strict=True):
        client.policies.save(tmp_path / name)
    resumed_from = [
        pool_in_two_ways(resumed(given, tmp_path / name), learners)[1]
        for name in ("single", "rows")
    ]
    after = play([*whole, *resumed_from], Game(given.agents, seed=1, num=10, name="later "), 9)
    assert len(after) > 90


def test_a_message_to_several_members_that_comes_again() -> None:
    scripts = {name: {"algorithm": "SCRIPTED", "policy": f"{__name__}:make_{name}"}
               for name in ("weary", "masked")}  # fmt: skip
    client = Client(plan("POOL", FIVE, MASKED, members=scripts), in_rows=True)
    game = Game(plan("POOL", FIVE, MASKED).agents, num=8)
    first = game.turn()
    begun = client.tell(first)
    assert {one.member for one in begun if isinstance(one, Started)} == set(scripts)
    assert client.tell(first, are_new=False) == begun
    steps = [
        Step(one.episode_id, 1, one.observations, dict.fromkeys("ab", 0.5))
        for one in first
        if isinstance(one, Step)
    ]
    is_weary.append(True)
    assert {one.code for one in client.tell(steps)} == {503}, "one has failed, so nobody acts"
    is_weary.clear()
    answers = client.tell(steps, are_new=False)
    assert all(isinstance(one, Actions) and one.t == 1 for one in answers)
    assert client.tell(steps, are_new=False) == answers
    assert client.policies.store.counts.num_env_steps == 8
