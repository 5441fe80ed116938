"""Policies that do not learn act on steps in rows as on the same steps one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.servers.conversations import Talk
from tests.servers.episodes.players import plain
from tests.servers.fixed_policies.test_fixed_policies import FIVE, SEEN, SEES, make, plan
from tests.servers.fixed_policies.test_pool import certain
from tests.servers.packing import answers_of, rows_of, unpacked
from tests.servers.resumable import assert_same
from tests.servers.scripted_store import make_plan

from muxrl.protocol.messages import (
    ActionRows,
    Actions,
    ServerSpec,
    Started,
    StartEpisode,
    Status,
    Step,
    StepRows,
)
from muxrl.protocol.spaces import Box, DictSpace, Discrete, MultiDiscrete, Space, TupleSpace
from muxrl.servers.app import PolicyServerApp
from muxrl.servers.config import ServerPlan
from muxrl.servers.server import make_policies

MASKED = DictSpace({"seen": Box((2,)), "action_mask": Box((5,), "int8", 0.0, 1.0)})
is_weary: list[bool] = []
"""Policies of `make_weary` fail while it is not empty."""


def make_masked(agent_id: str, observation_space: Any, action_space: Any, seed: int) -> Any:
    """Makes a policy that takes an available action by its count of steps and its seed."""
    count = iter(range(10**6))

    def act(observation: Any) -> int:
        available = np.flatnonzero(observation["action_mask"])
        return int(available[(next(count) + seed) % len(available)])

    return act


def make_weary(*args: Any) -> Any:
    act = make_masked(*args)
    return lambda observation: 1 // 0 if is_weary else act(observation)


def make_echo(agent_id: str, observation_space: Any, action_space: Any, seed: int) -> Any:
    """Makes a policy whose action is its observation, with the types of a step that came alone."""

    def act(observation: Any) -> Any:
        assert observation_space.contains(observation), observation
        return observation

    return act


class Client:
    """Sends a server the steps of messages as they are, or unpacks rows to send them one by one."""

    def __init__(self, given: ServerPlan, *, in_rows: bool) -> None:
        self.policies: Any = make(given)
        self.agents = given.agents
        spec, status = ServerSpec(1, "fixed", "POOL", {}), Status("fixed", "ready")
        self._app = PolicyServerApp(spec, "here", "", policies=self.policies, status=lambda: status)
        self.in_rows = in_rows
        self.num_in_rows = 0

    def tell(self, items: list[Any]) -> list[Any]:
        """Sends the items of a message; returns the replies, one for each row."""
        told = items if self.in_rows else unpacked(self.agents, items)
        replies: list[Any] = []
        for frame in [told] if self.in_rows else [[one] for one in told]:
            self._app.answer(frame, replies.extend, is_alone=True)
        for item, reply in zip(told, replies, strict=True):
            if isinstance(item, StepRows) and isinstance(reply, ActionRows) and not reply.replies:
                self.num_in_rows += len(item.episode_ids)
        return answers_of(self.agents, told, replies)


def frames(given: ServerPlan, num: int) -> Iterator[list[Any]]:
    """Yields so many messages, with steps in rows and one by one, of episodes of several
    lengths."""
    return Talk(given, 0, num, logs_actions=False).frames()


def lockstep(given: ServerPlan, t: int) -> list[Any]:
    """Returns a message with step `t` of eight episodes in rows."""
    rng, names = np.random.default_rng(t), [f"e{i}" for i in range(8)]
    steps = []
    for e in names:
        masks = [np.array(rng.permutation([1, 1, 0, 0, 1]), np.int8) for _ in given.agents]
        seen = {
            a: {"seen": SEEN, "action_mask": m} for a, m in zip(given.agents, masks, strict=True)
        }
        steps.append(Step(e, t, seen, dict.fromkeys(seen, 0.5) if t else {}))
    starts = [StartEpisode(e, should_explore=True) for e in names] if t == 0 else []
    return [*starts, rows_of(given.agents, steps)]


def play(clients: list[Client], messages: Iterable[list[Any]]) -> list[dict[str, Any]]:
    """Sends all clients the same messages; returns members and actions by episode, if all got the
    same."""
    found: list[dict[str, Any]] = []
    for items in messages:
        of_clients = []
        for client in clients:
            replies = client.tell(items)
            started = {f"{r.episode_id} by": r.member for r in replies if isinstance(r, Started)}
            acted = {r.episode_id: plain(r.actions) for r in replies if isinstance(r, Actions)}
            of_clients.append(started | acted)
        assert all(other == of_clients[0] for other in of_clients[1:])
        found.append(of_clients[0])
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
    sees, acts = ({a: both[i] for a, both in zip("ab", spaces, strict=True)} for i in range(2))
    settings = {} if what == "RANDOM" else {"policy": f"{__name__}:{what}"}
    algorithm = "SCRIPTED" if settings else "RANDOM"
    given = make_plan(sees, acts=acts, algorithm=algorithm, settings=settings)
    clients = [Client(given, in_rows=in_rows) for in_rows in (False, True)]
    play(clients, frames(given, 40))
    assert clients[1].num_in_rows > 20
    one, other = (client.policies for client in clients)
    assert one.store.counts == other.store.counts
    assert one.acting.get_random_state() == other.acting.get_random_state()


# --- pools ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def learners(rllib: None, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Returns three checkpoints and the live weights of the first; the third normalises
    observations."""
    folder = tmp_path_factory.mktemp("members")
    found = []
    for seed in range(3):
        ppo = make_plan(
            dict.fromkeys("ab", MASKED), acts=FIVE, server_id="main", seed=seed,
            model={"fcnet_hiddens": [8]}, normalize_observations=seed == 2,
        )  # fmt: skip
        policies: Any = make_policies(ppo, pytest.fail)
        found.append(str(policies.save(folder / str(seed))))
        if seed == 0:
            live = policies.live()
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


def test_members_of_all_kinds_act_in_rows_as_one_by_one(learners: Any) -> None:
    checkpoints, live = learners
    given = pool_plan(checkpoints)
    clients = [Client(given, in_rows=in_rows) for in_rows in (False, True)]
    for client in clients:
        client.policies.sync("main", {100: checkpoints[0]}, live)
    found = []
    for turn, items in enumerate(frames(given, 120)):
        if turn == 60:  # in the middle of episodes, also of members that are replaced
            newer = certain(live, 2)
            for client in clients:
                client.policies.sync("main", {200: checkpoints[1]}, newer)
        found += play(clients, [items])
    by = {what for of_turn in found for key, what in of_turn.items() if key.endswith(" by")}
    assert by == {*given.settings["members"]} - {"past"} | {"past@100", "past@200"}
    assert clients[1].num_in_rows > 100
    one, other = (client.policies for client in clients)
    assert one.store.counts == other.store.counts
    assert_same(one.acting.get_random_state(), other.acting.get_random_state())


def test_newer_weights_act_in_rows_at_once(learners: Any) -> None:
    checkpoints, live = learners
    members = {
        "now": {"live": "main"},
        "first": {"algorithm": "FROZEN", "checkpoint": checkpoints[0]},
    }
    given = plan("POOL", FIVE, MASKED, members=members)
    client = Client(given, in_rows=True)
    client.policies.sync("main", {}, live)
    begun = client.tell(lockstep(given, 0))
    players = {one.episode_id: one.member for one in begun if isinstance(one, Started)}
    assert set(players.values()) == set(members)
    for t, action in ((1, 1), (2, 4)):
        client.policies.sync("main", {}, certain(live, action))
        items = lockstep(given, t)
        for step, answer in zip(unpacked(given.agents, items), client.tell(items), strict=True):
            for agent_id, seen in step.observations.items():  # type: ignore[union-attr]
                if players[step.episode_id] == "now" and seen["action_mask"][action]:
                    assert answer.actions[agent_id] == action


def test_a_repeated_message_to_several_members_gets_the_same_answer() -> None:
    scripts = {name: {"algorithm": "SCRIPTED", "policy": f"{__name__}:make_{name}"}
               for name in ("weary", "masked")}  # fmt: skip
    client = Client(plan("POOL", FIVE, MASKED, members=scripts), in_rows=True)
    first, second = (lockstep(client.policies.store.plan, t) for t in range(2))
    begun = client.tell(first)
    assert {one.member for one in begun if isinstance(one, Started)} == set(scripts)
    assert client.tell(first) == begun
    is_weary.append(True)
    assert {one.code for one in client.tell(second)} == {503}, "one has failed, so nobody acts"
    is_weary.clear()
    answers = client.tell(second)
    assert all(isinstance(one, Actions) and one.t == 1 for one in answers)
    assert client.tell(second) == answers
    assert client.policies.store.counts.num_env_steps == 8
