"""A server judges a value alike by whichever way it comes: all take it, or all refuse it."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import requests
import torch
from tests.client.scripted_envs import TwoAgents
from tests.compliance.gateways import gateway_to
from tests.compliance.real_servers import PPO_SETTINGS, SMALL_MODEL, MakeServer, make_plan
from websockets.sync.client import connect

from muxrl.client import EpisodeMisuse, MultiplexingClient, PolicyClient, RefusedByServer
from muxrl.client.adapters.pettingzoo_parallel import PettingZooParallel
from muxrl.client.env_loop import EnvLoop
from muxrl.client.standalone import muxrl_client
from muxrl.protocol.spaces import Box, DictSpace, Discrete, Space

SPACES: dict[str, Space] = {
    "box": Box((2,)),
    "one": Box((1,)),
    "table": Discrete(5),
    "0": DictSpace({"x": Box((1,)), "1": Discrete(2)}),
}
GOOD: dict[str, Any] = {"box": [0.0, 0.0], "one": [0.0], "table": 0, "0": {"x": [0.0], "1": 0}}

Verdict = tuple[str, int | None, str | None] | str
TAKEN: Verdict = "taken"


@pytest.fixture(scope="module")
def address(make_server: MakeServer) -> Iterator[str]:
    """Gives the address of a gateway to a server that clients can copy networks from.

    `BEHIND` maps it to the server's own address.
    """
    agents = {agent: (space, Discrete(3)) for agent, space in SPACES.items()}
    server = make_server(make_plan("PPO", agents, settings=PPO_SETTINGS, model=SMALL_MODEL))
    with gateway_to(server) as gateway:
        BEHIND[gateway.address] = server.address
        yield gateway.address


BEHIND: dict[str, str] = {}


def judged(call: Callable[[], object], *errors: type[Exception]) -> Verdict:
    try:
        call()
    except errors as error:
        return "refused", error.code, error.agent_id  # type: ignore[attr-defined]
    return TAKEN


def play(client: Any, agent: Any, seen: Any = None, reward: Any = 0.0, **end: Any) -> None:
    episode_id = client.start_episode()
    actions = client.get_action(episode_id, {agent: GOOD[str(agent)] if seen is None else seen})
    assert list(actions) == [agent]
    client.log_returns(episode_id, {agent: reward})
    client.end_episode(episode_id, **end)


def by_client(make: Callable[[str], Any], refused: Any = RefusedByServer) -> Callable[..., Verdict]:
    def door(address: str, **what: Any) -> Verdict:
        with make(address) as client:
            return judged(lambda: play(client, **what), refused)

    return door


def items_of(episode_id: Any, agent: Any, seen: Any = None, reward: Any = 0.0, **end: Any) -> Any:
    start = {"type": "start", "episode_id": episode_id}
    seen = GOOD[str(agent)] if seen is None else seen
    step = {"type": "step", "episode_id": episode_id, "t": 0.0, "observations": {agent: seen}}
    rest = {"type": "end", "episode_id": episode_id, "t": 1.0, "rewards": {agent: reward}, **end}
    return [start, step, rest]


def text_of(items: Any) -> str:
    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {str(key): plain(part) for key, part in value.items()}
        if isinstance(value, list | tuple):
            return [plain(part) for part in value]
        value = value.tolist() if hasattr(value, "tolist") else value
        if isinstance(value, list):
            return plain(value)
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return "\ufeff" + json.dumps({"items": plain(items)})


def verdict_on(replies: list[dict[str, Any]]) -> Verdict:
    for reply in replies:
        if reply["type"] == "refused":
            return "refused", reply["code"], reply.get("agent_id")
    return TAKEN


def raw_http(address: str, **what: Any) -> Verdict:
    text = text_of(items_of(uuid.uuid4().int % 2**40, **what))
    answer = requests.post(f"http://{address}/v1/step", data=text.encode(), timeout=10)
    return verdict_on(answer.json().get("replies", [answer.json()]))


def raw_websocket(address: str, **what: Any) -> Verdict:
    with connect(f"ws://{address}/v1/ws") as connection:
        connection.send(text_of(items_of(uuid.uuid4().int % 2**40, **what)))
        return verdict_on(json.loads(connection.recv())["replies"])


class Env(TwoAgents):
    """An environment of one agent, whose two observations are both the given value."""

    def __init__(self, agent: str, seen: Any, reward: Any) -> None:
        self.possible_agents = self.agents = [agent]
        self._seen, self._reward = GOOD[agent] if seen is None else seen, reward

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        spaces = gymnasium.spaces
        inner = {"x": spaces.Box(-1, 1, (1,)), "1": spaces.Discrete(2)}
        of = {"box": spaces.Box(-1, 1, (2,)), "one": spaces.Box(-1, 1, (1,))}
        return {**of, "table": spaces.Discrete(5), "0": spaces.Dict(inner)}[agent]

    def seen(self) -> dict[str, Any]:
        return dict.fromkeys(self.possible_agents, self._seen)

    def rewards(self) -> dict[str, Any]:
        return dict.fromkeys(self.possible_agents, self._reward)

    def is_over(self) -> bool:
        return True


def by_adapter(
    address: str, agent: Any, seen: Any = None, reward: Any = 0.0, **end: Any
) -> Verdict:
    with MultiplexingClient([address]) as client:
        loop = EnvLoop([PettingZooParallel(Env(str(agent), seen, reward))], client, seeds=iter([0]))
        return judged(loop.run, RefusedByServer)


DOORS: dict[str, Callable[..., Verdict]] = {
    "websocket": by_client(PolicyClient),
    "http": by_client(lambda address: PolicyClient(address, transport="http")),
    # Local inference needs the server behind the gateway.
    "local": by_client(lambda address: PolicyClient(BEHIND[address], inference_mode="local")),
    "standalone": by_client(muxrl_client.PolicyClient, muxrl_client.RefusedByServer),
    "raw http": raw_http,
    "raw websocket": raw_websocket,
    "adapter": by_adapter,
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("agent", "seen"),
    [
        ("box", np.array([0, 1])),
        ("box", np.array([0.0, 1.0])),
        ("box", [0, np.float32(1)]),
        ("box", torch.tensor([0.5, 1.0])),
        ("box", [torch.tensor(0.5), torch.tensor(1)]),
        ("box", np.array([1, 0.5], object)),
        ("one", 0.5),
        ("one", torch.tensor(0.5)),
        ("one", np.float64(0.5)),
        ("table", 3.0),
        ("table", np.array([3])),
        ("table", torch.tensor(3)),
        (0, {"x": 0.5, 1: 1.0}),
    ],
)
def test_values_that_lose_no_meaning_by_conversion_are_taken(
    address: str, door: str, agent: Any, seen: Any
) -> None:
    assert DOORS[door](address, agent=agent, seen=seen) == TAKEN


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("agent", "seen"),
    [
        ("box", np.array([0.0, math.nan])),
        ("box", [0.0, math.inf]),
        ("box", np.full(2, 1e300)),
        ("box", [0.0]),
        ("box", 0.5),
        ("box", ["0.1", "0.2"]),
        ("box", {"0": 0.1, "1": 0.2}),
        ("table", 2.5),
        ("table", 5),
        ("table", True),
        ("0", {"x": [0.0]}),
    ],
)
def test_values_that_fit_no_space_are_refused_and_their_agent_is_named(
    address: str, door: str, agent: str, seen: Any
) -> None:
    assert DOORS[door](address, agent=agent, seen=seen) == ("refused", 422, agent)


@pytest.mark.parametrize("door", [door for door in DOORS if "raw" not in door])
@pytest.mark.parametrize("seen", [object(), b"ab", torch.ones(2, requires_grad=True).bfloat16()])
def test_values_that_cannot_be_encoded_are_refused_and_their_agent_is_named(
    address: str, door: str, seen: Any
) -> None:
    if door == "standalone" and torch.is_tensor(seen):
        pytest.skip("without NumPy it asks the tensor itself for a list")
    assert DOORS[door](address, agent="box", seen=seen) == ("refused", 422, "box")


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("reward", "is_one"),
    [
        (True, True),
        (np.float32(1), True),
        (np.int64(1), True),
        (np.array([1.0]), True),
        (torch.tensor([[1.0]]), True),
        (math.nan, False),
    ],
)
def test_any_finite_single_number_is_taken_as_a_reward(
    address: str, door: str, reward: Any, is_one: bool
) -> None:
    expected = TAKEN if is_one else ("refused", 422, "box")
    assert DOORS[door](address, agent="box", reward=reward) == expected


@pytest.mark.parametrize("door", [door for door in DOORS if door != "adapter"])
@pytest.mark.parametrize("reward", [None, "1.0", [1.0, 2.0]])
def test_rewards_other_than_one_number_are_refused(address: str, door: str, reward: Any) -> None:
    assert DOORS[door](address, agent="box", reward=reward) == ("refused", 422, "box")


@pytest.mark.parametrize("door", [door for door in DOORS if door not in ("adapter", "local")])
@pytest.mark.parametrize(
    ("metric", "verdict"),
    [
        (True, TAKEN),
        (np.bool_(True), TAKEN),
        (np.array([1.0]), TAKEN),
        (None, TAKEN),
        (math.nan, TAKEN),
        ({"box": True, 0: None}, TAKEN),
        ("won", ("refused", 422, None)),
        ({"box": "won"}, ("refused", 422, "box")),
    ],
)
def test_a_metric_is_a_number_or_left_out(
    address: str, door: str, metric: Any, verdict: Verdict
) -> None:
    assert DOORS[door](address, agent="box", metrics={"win": metric}) == verdict


@pytest.mark.parametrize("transport", ["websocket", "http", "standalone"])
def test_ids_that_are_numbers_name_the_same_agents_as_their_texts(
    address: str, transport: Any
) -> None:
    kind: Any = PolicyClient
    if transport == "standalone":
        kind = muxrl_client.PolicyClient
    settings = {} if transport == "standalone" else {"transport": transport}
    with kind(address, **settings) as client:
        for given in (uuid.uuid4(), uuid.uuid4().int % 2**40):
            assert client.start_episode(given) == str(given)
            assert list(client.get_action(given, {0: GOOD["0"], "box": [0, 0]})) == [0, "box"]
            client.log_returns(given, {0: 1.0}, terminations={0: True})
            client.end_episode(given)
        with pytest.raises((EpisodeMisuse, muxrl_client.EpisodeMisuse), match="name"):
            client.get_action(client.start_episode(), {0: GOOD["0"], "0": GOOD["0"]})


@pytest.mark.parametrize("kind", [PolicyClient, muxrl_client.PolicyClient])
def test_calls_in_rllib_s_style_are_explained_and_the_episode_goes_on(
    address: str, kind: Any
) -> None:
    misuse = (EpisodeMisuse, muxrl_client.EpisodeMisuse)
    with kind(address) as client:
        e = client.start_episode()
        client.get_action(e, {"box": [0, 0]})
        for call, says in (
            (lambda: client.log_returns(e, 1.5), r"rewards must be a dict by agent, .*; got 1\.5"),
            (
                lambda: client.log_returns(e, {"box": 1.0}, {}, True),
                r"terminations .* got True; .* call end_episode\(\)",
            ),
            (
                lambda: client.get_action(e, [0.1]),
                r"observations must be a dict by agent, .*\[0.1\]",
            ),
            (
                lambda: client.log_action(e, {"box": [0, 0]}, 3),
                "actions must be a dict by agent.* 3",
            ),
            (lambda: client.end_episode(e, np.zeros(2)), "observations must be a dict by agent"),
        ):
            with pytest.raises(misuse, match=says):
                call()
        assert client.get_action(e, {"box": [0, 0]})
        assert client.end_episode(e, {"box": np.zeros(2)}) != 2


@pytest.mark.parametrize("kind", [PolicyClient, muxrl_client.PolicyClient])
def test_final_observations_are_of_when_they_were_given(address: str, kind: Any) -> None:
    buffer = np.zeros(2, np.float32)
    with kind(address) as client:
        episode_id = client.start_episode()
        client.get_action(episode_id, {"box": buffer})
        client.log_returns(
            episode_id, {}, truncations={"box": True}, final_observations={"box": buffer}
        )
        buffer[:] = np.nan
        client.end_episode(episode_id)
