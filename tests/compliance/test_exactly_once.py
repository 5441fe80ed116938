"""Everything is recorded exactly once, whatever links lose, repeat, delay or cut.

The client, transport, gateway and server are the real ones, but without sockets, threads and
clocks: Hypothesis plays the network between them, and shrinks the failures that it finds. The
client asks the servers itself, or a gateway that asks them, with a hostile link on each side of the
gateway.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from tests.servers.scripted_store import ScriptedStore, make_plan, seen

from muxrl.client import EpisodeLost, MultiplexingClient, ServerLost
from muxrl.client.network_transport import Broken, NetworkTransport
from muxrl.orchestrator.gateway.gateway import Gateway, _Waiting
from muxrl.orchestrator.gateway.rounds import Asked
from muxrl.protocol import PROTOCOL_VERSION
from muxrl.protocol.codec import decode_batch, encode, encode_json
from muxrl.protocol.messages import (
    AgentInfo,
    AnyItem,
    AnyReply,
    Batch,
    BatchReply,
    ServerSpec,
    Status,
)
from muxrl.servers.app import PolicyServerApp
from muxrl.servers.episodes.blocks import Block

SERVERS = {"left": "ab", "right": "c"}
GATEWAY = "gateway"
AGENTS = "abc"
FATES = (
    "frame lost",  # the connection stays open, but no answer comes
    "answer lost",
    "cut before",  # the connection is cut before the server has the frame
    "cut after",  # the connection is cut after the server has taken the frame; the answer is lost
    "twice",
    "late",  # the connection is cut at once, but the server gets the frame much later
    "held",  # the server answers only once its learner has finished
)


class Server:
    """A `PolicyServerApp` around an `EpisodeStore`; its actions are ``t % 3``."""

    def __init__(self, server_id: str, groups: dict[str, tuple[str, ...]] | None = None) -> None:
        plan = make_plan(SERVERS[server_id], groups)
        self.scripted = ScriptedStore(plan)
        self.is_held = False
        agents = {a: AgentInfo(p.policy_id, p.observation_space, p.action_space, p.group)
                  for a, p in plan.agents.items()}  # fmt: skip
        spec = ServerSpec(
            PROTOCOL_VERSION,
            server_id,
            "PPO",
            agents,
            {group: list(members) for group, members in plan.groups.items()},
            max_episodes=plan.limits.max_episodes,
        )
        feed = self.scripted.feed
        feed._num_ahead = lambda: int(self.is_held)  # type: ignore[method-assign]
        self.app = PolicyServerApp(
            spec=spec,
            address="memory",
            token="",
            policies=SimpleNamespace(  # type: ignore[arg-type]
                store=self.scripted.store, feed=feed, acting=self
            ),
            status=lambda: Status(server_id, "ready", is_waiting_for_learner=self.is_held),
        )

    def act(self, blocks: Sequence[Block]) -> list[tuple[Any, int]]:
        """Returns scripted actions; stands in for the policies' inference."""
        return [(self.scripted.choose(block), 0) for block in blocks]

    def answer(self, *frames: bytes) -> list[bytes]:
        """Takes some frames; returns a list to which the answer to the first of them is added.

        The list stays empty as long as the learner holds the answer back.
        """
        answers: list[list[bytes]] = [[] for _ in frames]
        for frame, mine in zip(frames, answers, strict=True):
            self.app.answer(decode_batch(frame).items, keep_in(mine), is_alone=True)
        return answers[0]

    def release(self) -> None:
        self.is_held = False
        self.app.feed._let_through()


def keep_in(answers: list[bytes]) -> Callable[[list[AnyReply]], None]:
    return lambda replies: answers.append(encode(BatchReply(replies)))


class Loop:
    """Stands in for the event loop that sends a gateway's answers: it calls everything at once."""

    def call_soon_threadsafe(self, call: Callable[..., object], *arguments: object) -> None:
        call(*arguments)


class UnthreadedGateway(Gateway):
    """A gateway without the thread that asks its servers: the test says when frames are taken."""

    def _ask(self) -> None:
        """Does nothing, in the place of the thread's loop."""


class GatewayServer:
    """Runs a `Gateway` to these servers that answers all waiting frames in one round."""

    def __init__(self, links: Mapping[str, HostileTransport]) -> None:
        self.app = UnthreadedGateway(MultiplexingClient(links), "memory:2", "")
        self.is_held = False
        self._frames: list[_Waiting] = []

    def answer(self, *frames: bytes) -> list[bytes]:
        """Takes some frames; returns a list to which the answer to the first of them is added.

        While the gateway `is_held`, frames wait as they would for the gateway's thread.
        """
        answers: list[list[bytes]] = [[] for _ in frames]
        for frame, mine in zip(frames, answers, strict=True):
            asked = [Asked(item) for item in decode_batch(frame).items]
            self._frames.append(_Waiting(asked, keep_in(mine), Loop()))  # type: ignore[arg-type]
        self.app._busy_since = -1e9 if self.is_held else None
        if not self.is_held:
            self.release()
        return answers[0]

    def release(self) -> None:
        self.is_held, self.app._busy_since = False, None
        frames, self._frames = self._frames, []
        if frames:
            self.app._answer_together(frames)


class Unhurried:
    """Stands in for the event that a transport waits on when it pauses: no pause takes any time."""

    def wait(self, time_s: float) -> bool:
        return False

    def is_set(self) -> bool:
        return False


class HostileTransport(NetworkTransport):
    """Carries each frame as the next of its `fates` says, and faithfully once there are none."""

    def __init__(self, server: Server | GatewayServer) -> None:
        super().__init__("memory:1", patience_s=10_000.0)
        self.server = server
        self.fates: deque[str] = deque()
        self.late: deque[bytes] = deque()
        self.is_down = False
        self._has_given_up = Unhurried()  # type: ignore[assignment]
        self._answers: list[bytes] | None = None

    def _encode(self, items: list[AnyItem]) -> bytes:
        return encode(Batch(items))

    def _post(self, frame: bytes, timeout_s: float) -> None:
        self._answers = None
        if self.is_down:
            raise Broken("it is down")
        fate = self.fates.popleft() if self.fates else ""
        if fate == "cut before":
            raise Broken(fate)
        if fate == "late":
            self.late.append(frame)
        elif fate == "frame lost":
            self._answers = []
        else:
            self.server.is_held |= fate == "held"
            self._answers = self.server.answer(*[frame] * (2 if fate == "twice" else 1))
            if fate == "answer lost":
                self._answers = []
            if fate == "cut after":
                self._answers = None

    def _await(self, timeout_s: float) -> bytes:
        if self._answers is None:
            raise Broken("it was cut")
        if not self._answers:
            raise TimeoutError
        return self._answers.pop()

    def _drop(self) -> None:
        self._answers = None

    def _get(self, path: str, timeout_s: float) -> bytes:
        if self.is_down:
            raise Broken("it is down")
        answer = encode_json(self.server.app.spec if "spec" in path else self.server.app.status())
        self.server.release()
        return answer


@dataclass
class Made:
    """What the simulation did in one episode, by agent."""

    episode_id: str
    t: int = 0
    times: dict[str, list[int]] = field(default_factory=dict)
    """By agent: the `t` of each step in which it acted."""
    actions: dict[str, list[int]] = field(default_factory=dict)
    rewards: dict[str, list[float]] = field(default_factory=dict)
    """By agent: the reward of each of its actions."""
    paid: int = 0
    """The sum of all agents' rewards, including those paid before an agent's first action."""


fates = st.fixed_dictionaries(
    {s: st.lists(st.sampled_from(FATES), max_size=3) for s in (*SERVERS, GATEWAY)}
)
acting = st.lists(st.sampled_from(AGENTS), min_size=1, unique=True)
rewards = st.dictionaries(st.sampled_from(AGENTS), st.integers(-3, 3))


class Network(RuleBasedStateMachine):
    """Plays episodes over hostile links to the servers."""

    loss: type[Exception] = ServerLost
    """The exception that the simulation gets if a server stays away."""

    @initialize()
    def connect(self) -> None:
        self.servers = {server_id: Server(server_id) for server_id in SERVERS}
        self.links = {s: HostileTransport(server) for s, server in self.servers.items()}
        self.client = self.reach(self.links)
        self.ids = itertools.count()
        self.playing: list[Made] = []
        self.ended: list[Made] = []
        self.aborted: list[Made] = []
        self.lost: list[Made] = []

    def reach(self, links: dict[str, HostileTransport]) -> MultiplexingClient:
        """Returns the simulation's client; adds the links that it uses apart from the servers'."""
        return MultiplexingClient(links)

    def start(self) -> None:
        episode_id = self.client.start_episode(f"e{next(self.ids)}")
        self.playing.append(Made(episode_id))

    @rule(data=st.data(), fates=fates, is_new=st.booleans())
    def step(self, data: Any, fates: dict[str, list[str]], is_new: bool) -> None:
        """Plays a step of one or more episodes, which are sent in one message."""
        self.set(fates)
        if not self.playing or (is_new and len(self.playing) < 3):
            self.start()
        together = data.draw(st.sets(st.sampled_from(range(len(self.playing))), min_size=1))
        episodes = [self.playing[i] for i in sorted(together)]
        observations = {
            made.episode_id: {a: seen(a, made.t) for a in data.draw(acting)} for made in episodes
        }
        answers = self.client.get_action([made.episode_id for made in episodes], observations)
        for made in episodes:
            actions = answers[made.episode_id]
            assert actions.keys() == observations[made.episode_id].keys()
            for agent, action in actions.items():
                made.times.setdefault(agent, []).append(made.t)
                made.actions.setdefault(agent, []).append(int(action))
                made.rewards.setdefault(agent, []).append(0.0)
            paid = data.draw(rewards)
            self.client.log_returns(made.episode_id, paid)
            made.paid += sum(paid.values())
            for agent, reward in paid.items():
                if agent in made.rewards:
                    made.rewards[agent][-1] += reward
            made.t += 1

    @rule(data=st.data(), fates=fates, how=st.sampled_from(["end", "end", "abort"]))
    def finish(self, data: Any, fates: dict[str, list[str]], how: str) -> None:
        made = self.pick(data)
        self.set(fates)
        if how == "end":
            final = {agent: seen(agent, made.t) for agent in AGENTS}
            self.client.end_episode(made.episode_id, final, truncated=True)
            self.ended.append(made)
        else:
            self.client.abort_episode(made.episode_id)
            self.aborted.append(made)

    @rule(data=st.data(), down=st.sampled_from(sorted(SERVERS)), fates=fates)
    def lose_a_server(self, data: Any, down: str, fates: dict[str, list[str]]) -> None:
        """Lets a server stay away in mid-episode for longer than the client's patience."""
        made = self.pick(data)
        self.set(fates)
        link = self.links[down]
        link.is_down, link._patience_s = True, 0.0
        with pytest.raises(self.loss, match=f"server '{down}'"):
            self.client.get_action(made.episode_id, {a: seen(a, made.t) for a in AGENTS})
        link.is_down, link._patience_s = False, 10_000.0
        for agent in AGENTS:
            made.times.setdefault(agent, []).append(made.t)
        self.lost.append(made)

    @rule(server_id=st.sampled_from(sorted(SERVERS)))
    def deliver_late(self, server_id: str) -> None:
        """Delivers to a server the frames that its old connections still carry."""
        link = self.links[server_id]
        while link.late:
            link.server.answer(link.late.popleft())

    def teardown(self) -> None:
        if not hasattr(self, "client"):
            return
        for made in list(self.playing):
            self.set({})
            self.client.abort_episode(made.episode_id)
            self.aborted.append(made)
        for server_id in self.links:
            self.deliver_late(server_id)
        for server_id, server in self.servers.items():
            server.release()
            server.scripted.store.expire(time.monotonic() + 1e6)
            self.check(server.scripted, SERVERS[server_id])
            assert server.scripted.store.counts.num_episodes == len(self.ended)
        assert self.client.num_mismatches == 0
        self.client.close()

    def check(self, store: ScriptedStore, agents: str) -> None:
        """Compares what a server recorded with what the simulation did."""
        for made, agent in itertools.product(self.ended + self.aborted + self.lost, agents):
            times, actions, rewards = store.recorded(agent, made.episode_id)
            expected = made.times.get(agent, [])
            if made in self.ended:
                expected = [*expected, made.t] if expected else []
            num = len(actions)
            if made in self.lost:
                assert times == expected[: len(times)], "a part, in order"
            elif expected[1:]:
                assert times == expected, "each once, in order"
                assert num == len(expected) - 1
            else:
                assert num == 0, "nothing followed from its only action"
            assert actions == made.actions.get(agent, [])[:num]
            assert rewards == made.rewards.get(agent, [])[:num]

    def set(self, fates: dict[str, list[str]]) -> None:
        for server_id, link in self.links.items():
            link.fates = deque(fates.get(server_id, ()))

    def pick(self, data: Any) -> Made:
        if not self.playing:
            self.start()
        return self.playing.pop(data.draw(st.integers(0, len(self.playing) - 1)))


class NetworkWithGateway(Network):
    """Plays episodes over hostile links, through a gateway that is the client's only server."""

    loss = EpisodeLost

    def reach(self, links: dict[str, HostileTransport]) -> MultiplexingClient:
        self.gateway = GatewayServer(dict(links))
        links[GATEWAY] = HostileTransport(self.gateway)
        return MultiplexingClient([links[GATEWAY]])

    @rule(data=st.data(), fates=fates)
    def lose_the_gateway(self, data: Any, fates: dict[str, list[str]]) -> None:
        self.loss = ServerLost
        self.lose_a_server(data, GATEWAY, fates)
        self.loss = EpisodeLost

    @rule(is_beside=st.booleans())
    def deliver_late_to_the_gateway(self, is_beside: bool) -> None:
        """Delivers late frames to the gateway by themselves, or together with the next frame."""
        self.gateway.is_held = is_beside
        self.deliver_late(GATEWAY)

    def teardown(self) -> None:
        if hasattr(self, "gateway"):
            self.gateway.release()
        super().teardown()
        if hasattr(self, "gateway"):
            episodes = self.gateway.app.episodes
            made = [*self.ended, *self.aborted, *self.lost]
            assert [sum(one.returns.values()) for one in episodes.ended] == [
                one.paid for one in self.ended
            ]
            assert episodes.counts.num_env_steps == sum(one.t for one in made)
            assert self.gateway.app.client.num_mismatches == 0


TestExactlyOnce = Network.TestCase
TestExactlyOnce.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestExactlyOnceThroughAGateway = NetworkWithGateway.TestCase
TestExactlyOnceThroughAGateway.settings = settings(TestExactlyOnce.settings, max_examples=40)
