"""The client, servers, callbacks and a gateway count the same return: the sum of rewards."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.client.test_lockstep import Restless
from tests.compliance.real_servers import make_plan, running
from tests.compliance.test_exactly_once import (
    AGENTS,
    GATEWAY,
    SERVERS,
    GatewayServer,
    HostileTransport,
    Server,
)
from tests.servers.scripted_store import seen

from muxrl.client import MultiplexingClient
from muxrl.client.env_loop import EnvLoop, EpisodeResult
from muxrl.protocol.messages import Ended
from muxrl.protocol.spaces import Box
from muxrl.servers.episodes.store import EpisodeStore
from muxrl.servers.training.callbacks import Callbacks, Update

TEAM = ("a", "b")


class Turn(NamedTuple):
    """What follows from the actions of a step, and which of the living agents act next."""

    rewards: dict[str, int]
    ends: dict[str, bool]
    """By agent that ends: whether it is truncated, not terminated."""
    acting: set[str]


agents = st.sampled_from(AGENTS)
turns = st.lists(
    st.builds(
        Turn,
        st.dictionaries(agents, st.integers(-3, 3)),
        st.dictionaries(agents, st.booleans(), max_size=2),
        st.sets(agents),
    ),
    min_size=1,
    max_size=8,
)


class Played:
    """Plays an episode in which all agents act in the first step, and notes all rewards."""

    def __init__(self, client: MultiplexingClient, turns: list[Turn], *, is_team: bool) -> None:
        self.paid = dict.fromkeys(AGENTS, 0.0)
        self.credited = dict.fromkeys(AGENTS, 0.0)
        """By agent: the rewards paid while it, or any member of its team, was still alive."""
        client.start_episode("e")
        episode = client._episodes["e"]
        alive = acting = set(AGENTS)
        for t, turn in enumerate(turns):
            client.get_action("e", {a: seen(a, t) for a in acting})
            for agent, reward in turn.rewards.items():
                self.paid[agent] += reward
                if not alive.isdisjoint(TEAM if is_team and agent in TEAM else agent):
                    self.credited[agent] += reward
            ends = {a: is_cut for a, is_cut in turn.ends.items() if a in alive}
            client.log_returns(
                "e",
                turn.rewards,
                terminations={a: not is_cut for a, is_cut in ends.items()},
                truncations=ends,
                final_observations={a: seen(a, t + 1) for a in ends},
            )
            alive = alive - ends.keys()
            acting = turn.acting & alive
        client.end_episode("e", {a: seen(a, len(turns)) for a in alive}, truncated=True)
        self.returns = episode.returns

    def of(self, agents: str, paid: Mapping[str, float] | None = None) -> dict[str, float]:
        return {agent: (paid or self.paid)[agent] for agent in agents}


class Heard:
    """Callbacks of a server that keep the returns of its episodes."""

    def __init__(self) -> None:
        self.returns: list[dict[str, float]] = []

    def on_episode(self, episode: Ended) -> None:
        self.returns.append(episode.returns)


@pytest.mark.parametrize("way", ["servers", GATEWAY])
@given(turns=turns, is_team=st.booleans())
@example([Turn({"c": 1}, {"c": False}, {"a"}), Turn({"c": 10}, {}, set())], False)
@example([Turn({}, {"a": True, "b": True}, {"c"}), Turn({"a": 5}, {}, set())], True)
@example([Turn({"c": 1}, {"c": False}, set()), Turn({"c": 10}, {}, {"a"})], False)
def test_each_reward_counts_once_and_alike_everywhere(
    way: str, turns: list[Turn], is_team: bool
) -> None:
    groups: Any = {"left": {"team": TEAM} if is_team else {}}
    servers = {server_id: Server(server_id, groups.get(server_id)) for server_id in SERVERS}
    callbacks = {server_id: Callbacks(f"{__name__}:Heard") for server_id in SERVERS}
    for server_id, server in servers.items():
        server.scripted.store.ended = callbacks[server_id].ended
    links = {server_id: HostileTransport(server) for server_id, server in servers.items()}
    gateway = GatewayServer(links) if way == GATEWAY else None
    client = MultiplexingClient(links if gateway is None else [HostileTransport(gateway)])

    played = Played(client, turns, is_team=is_team)

    assert played.returns == played.paid
    assert client.num_mismatches == 0
    for server_id, server in servers.items():
        mine = played.of(SERVERS[server_id])
        (heard,) = told(callbacks[server_id])
        assert heard == mine
        counts = server.scripted.store.counts
        assert counts.episode_return_mean == pytest.approx(np.mean(list(mine.values())))
        learned = [np.sum(t.rewards) for c in server.scripted.chunks for t in c.trajectories]
        assert sum(learned) == sum(played.of(SERVERS[server_id], played.credited).values())
    if gateway is not None:
        episodes = gateway.app.episodes
        assert gateway.app.client.num_mismatches == 0
        assert [one.returns for one in episodes.ended] == [played.paid]
        assert episodes.counts.episode_return_mean == pytest.approx(
            np.mean(list(played.paid.values()))
        )


def told(callbacks: Callbacks) -> list[dict[str, float]]:
    callbacks.report(Update(1, 0, {}, {}))
    found: Heard = callbacks._callbacks
    return found.returns


def test_steps_in_rows_count_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """In many simulations in lockstep, the only agent of one server leaves, and is paid later."""
    rows: list[int] = []
    accept = EpisodeStore.accept_rows

    def accepted(store: EpisodeStore, item: Any, now: float) -> Any:
        rows.append(len(item.episode_ids))
        return accept(store, item, now)

    monkeypatch.setattr(EpisodeStore, "accept_rows", accepted)
    results: list[EpisodeResult] = []
    with ExitStack() as stack:
        servers = {}
        for agent in "ab":
            plan = make_plan("RANDOM", {agent: Box((1,))}, server_id=agent)
            servers[agent] = server = stack.enter_context(running(plan))
            server.policies.store.ended = deque()
        client = stack.enter_context(MultiplexingClient([s.address for s in servers.values()]))
        simulations = [Restless() for _ in range(60)]
        EnvLoop(simulations, client, seeds=iter(range(100))).run(results.append)
        assert client.num_mismatches == 0
    assert len(results) == 100
    assert max(rows) >= 16
    for agent, server in servers.items():
        store = server.policies.store
        assert store.ended is not None
        counted = {one.episode_id: one.returns for one in store.ended}
        assert counted == {
            one.episode_id: pytest.approx({agent: one.returns[agent]}) for one in results
        }
        mean = np.mean([one.returns[agent] for one in results])
        assert store.counts.episode_return_mean == pytest.approx(mean)
        assert server.status().episode_return_mean == pytest.approx(mean)
