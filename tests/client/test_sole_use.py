"""A client that threads or processes share raises; it never returns another episode's action."""

from __future__ import annotations

import multiprocessing
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from tests.client.scripted_servers import Server
from tests.compliance.real_servers import make_plan

from muxrl.client import EpisodeMisuse, PolicyClient, ServerUnavailable
from muxrl.client.standalone import muxrl_client
from muxrl.protocol.messages import Actions, Started, StartEpisode, Step
from muxrl.protocol.spaces import Box, Discrete
from muxrl.servers.config import AgentPlan
from muxrl.servers.server import PolicyServer

MISUSE = (EpisodeMisuse, muxrl_client.EpisodeMisuse)
KINDS = [PolicyClient, muxrl_client.PolicyClient]


def make_echo(agent_id: str, observation_space: Any, action_space: Any, seed: int) -> Any:
    return lambda observation: round(float(observation[0]))


@pytest.fixture(scope="module")
def server() -> Iterator[PolicyServer]:
    agents = {"car": AgentPlan("p", Box((1,)), Discrete(8))}
    plan = make_plan("SCRIPTED", {}, settings={"policy": f"{__name__}:make_echo"})
    server = PolicyServer(replace(plan, agents=agents))
    server.start()
    yield server
    assert server.stop()


def play(client: Any, number: int, num_episodes: int = 20) -> Counter[str]:
    """Plays episodes whose actions should be `number`; counts right and wrong actions, and
    refusals."""
    seen: Counter[str] = Counter()
    for _ in range(num_episodes):
        try:
            episode_id = client.start_episode()
            for _ in range(5):
                action = client.get_action(episode_id, {"car": [float(number)]})["car"]
                seen["right" if action == number else "wrong"] += 1
                client.log_returns(episode_id, {"car": 1.0})
            client.end_episode(episode_id)
        except MISUSE:
            seen["refused"] += 1
    return seen


@pytest.mark.parametrize("kind", KINDS)
def test_threads_at_once_are_refused_and_never_get_anothers_action(
    server: PolicyServer, kind: Any
) -> None:
    with kind(server.address) as client, ThreadPoolExecutor(4) as pool:
        seen = sum(pool.map(lambda n: play(client, n), range(4)), Counter())
        assert seen["wrong"] == 0
        assert seen["right"] > 0
        assert seen["refused"] > 0
        assert play(client, 5)["right"] == 100, "one thread after the others is welcome"


def test_a_refusal_names_the_thread_that_waits(server: PolicyServer) -> None:
    with PolicyClient(server.address) as client, client._use:
        caught: list[BaseException] = []

        def use() -> None:
            try:
                client.start_episode()
            except EpisodeMisuse as error:
                caught.append(error)

        thread = threading.Thread(target=use, name="the second")
        thread.start()
        thread.join()
    main = threading.current_thread().name
    assert f"thread 'the second' uses this client while thread '{main}'" in str(caught[0])


def in_child(client: Any, pipe: Any) -> None:
    try:
        client.start_episode()
    except MISUSE as error:
        client.close()  # the connection is the parent's, and stays open
        pipe.send(str(error))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_is_refused_and_leaves_its_parents_client_alone(
    server: PolicyServer, kind: Any
) -> None:
    context = multiprocessing.get_context("fork")
    with kind(server.address) as client:
        episode_id = client.start_episode()
        mine, theirs = context.Pipe()
        child = context.Process(target=in_child, args=(client, theirs))
        child.start()
        assert mine.poll(30)
        assert "make a client in each process" in mine.recv()
        child.join()
        assert client.get_action(episode_id, {"car": [3.0]}) == {"car": 3}
        client.end_episode(episode_id)


@pytest.mark.parametrize(
    ("kind", "reply"),
    [
        (Step, Actions("e", 4, {"a": 1})),
        (Step, Actions("f", 0, {"a": 1})),
        (Step, Started("f")),
        (StartEpisode, Started("f")),
    ],
)
def test_an_answer_to_another_message_closes_the_connection(kind: Any, reply: Any) -> None:
    server = Server("only", "a", [], lambda item: reply if isinstance(item, kind) else None)
    client = PolicyClient(server)

    def play() -> None:
        client.start_episode("e")
        client.get_action("e", {"a": [0.0]})

    with pytest.raises(ServerUnavailable, match="belongs to another episode or step"):
        play()
    assert server.is_closed, "what comes next on that connection would be wrong, too"
