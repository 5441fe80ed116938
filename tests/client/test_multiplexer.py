"""One step is split among servers, and their answers are merged; also when one refuses or is
lost."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.client.scripted_servers import ALL, Log, Server, refusing

from muxrl.client import (
    AssignmentError,
    EpisodeLost,
    EpisodeMisuse,
    MultiplexingClient,
    PolicyClient,
    RefusedByServer,
    ServerUnavailable,
)
from muxrl.protocol.messages import (
    Aborted,
    AbortEpisode,
    Actions,
    Ended,
    EndEpisode,
    Refused,
    StartEpisode,
    Step,
)

# --- who serves whom ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("servers", "says"),
    [
        ({"left": "ab", "right": "bc"}, "agent 'b' belongs to two servers, 'left' and 'right'"),
        ({"left": "a", "left ": "a"}, "two addresses lead to server 'left'"),
    ],
)
def test_servers_with_a_common_agent_or_id_are_refused(
    log: Log, servers: dict[str, str], says: str
) -> None:
    made = [Server(name.strip(), agents, log) for name, agents in servers.items()]
    with pytest.raises(AssignmentError, match=says):
        MultiplexingClient(made)
    assert all(server.is_closed for server in made)


def test_names_are_the_servers_own(left: Server, right: Server) -> None:
    with pytest.raises(AssignmentError, match="named 'right' here calls itself 'left'"):
        MultiplexingClient({"right": left, "left": right})
    assert left.is_closed
    assert MultiplexingClient({"left": left, "right": right}).specs.keys() == {"left", "right"}


def test_ids_of_episodes_begin_as_the_client_was_told(left: Server, right: Server) -> None:
    client = MultiplexingClient([left, right], episode_prefix="simulation-0-")
    ids = [client.start_episode() for _ in range(3)]
    assert len(set(ids)) == 3
    assert all(episode_id.startswith("simulation-0-") for episode_id in ids)
    assert client.start_episode("mine") == "mine"
    assert left.items == [StartEpisode(episode_id) for episode_id in [*ids, "mine"]]


def test_an_agent_without_a_server(client: MultiplexingClient, left: Server) -> None:
    with pytest.raises(AssignmentError, match=r"agents \['x'\] belong to no server; 'left' serves"):
        client.check_agents(["a", "x"])
    episode_id = client.start_episode()
    with pytest.raises(
        AssignmentError, match=r"agent 'x' belongs to no server; agents with their servers: a \(l"
    ):
        client.get_action(episode_id, {"a": [1.0], "x": [1.0]})
    assert left.of(Step) == []
    with pytest.raises(AssignmentError, match="'x'"):
        client.log_returns(episode_id, {"x": 1.0})
    client.get_action(episode_id, {"a": [1.0]})  # no part of the refused step was sent
    client.end_episode(episode_id)
    assert client.num_mismatches == 0


# --- split and merge ------------------------------------------------------------------------


@given(st.dictionaries(st.text(min_size=1, max_size=3), st.integers(0, 3), min_size=1), st.data())
def test_merging_what_was_split_is_the_same_again(server_of: dict[str, int], data: Any) -> None:
    log: Log = []
    servers = [Server(f"s{i}", [a for a, j in server_of.items() if j == i], log) for i in range(4)]
    client = MultiplexingClient(servers)
    episode_id = client.start_episode()
    told = [0] * 4
    for _ in range(3):
        acting = data.draw(st.lists(st.sampled_from(sorted(server_of)), unique=True))
        actions = client.get_action(episode_id, {agent: [0.0] for agent in acting})
        assert list(actions) == acting
        for agent, action in actions.items():
            assert action == f"s{server_of[agent]}:{agent}:{told[server_of[agent]]}"
        for i in {server_of[agent] for agent in acting}:
            told[i] += 1
    client.end_episode(episode_id)
    assert [server.steps[episode_id] for server in servers] == told
    assert client.num_mismatches == 0


def test_combinations_of_agents_without_end_are_forgotten(log: Log) -> None:
    drivers = [f"driver_{i}" for i in range(1_100)]
    client = MultiplexingClient([Server("left", drivers, log)])
    client.start_episode("e")
    for t, driver in enumerate(drivers):
        assert client.get_action("e", {driver: [0.0]}) == {driver: f"left:{driver}:{t}"}
    assert len(client._assignment.known) < len(drivers)


def test_each_server_sees_its_own_agents_and_their_rewards(
    client: MultiplexingClient, left: Server, right: Server
) -> None:
    episode_id = client.start_episode()
    assert client.get_action(episode_id, ALL) == {
        "a": "left:a:0",
        "b": "left:b:0",
        "c": "right:c:0",
    }
    flags = {"b": True, "c": False, "__all__": False}
    client.log_returns(episode_id, {"a": 1.0, "c": 2.0}, terminations=flags)
    client.get_action(episode_id, {"c": [1.0], "a": [1.0]})
    assert left.of(Step)[1] == Step(episode_id, 1, {"a": [1.0]}, {"a": 1.0}, {"b": True})
    assert right.of(Step)[1] == Step(episode_id, 1, {"c": [1.0]}, {"c": 2.0})


def test_many_episodes_in_one_message_a_server(
    client: MultiplexingClient, left: Server, log: Log
) -> None:
    one, two = client.start_episode(), client.start_episode()
    log.clear()
    actions = client.get_action([one, two], {one: ALL, two: {"a": [1.0]}})
    assert actions == {
        one: {"a": "left:a:0", "b": "left:b:0", "c": "right:c:0"},
        two: {"a": "left:a:0"},
    }
    # All servers are asked before any answer is awaited.
    turn = [("send", "left"), ("send", "right"), ("receive", "left"), ("receive", "right")]
    assert log == turn
    assert [item.episode_id for item in left.frames[-1]] == [one, two]


def test_state_goes_to_those_who_ask_for_it(log: Log) -> None:
    asking, other = Server("asking", "a", log, state_size=1), Server("other", "b", log)
    client = MultiplexingClient([asking, other])
    assert client.wants_state
    episode_id = client.start_episode()
    client.get_action(episode_id, {"a": [0.0], "b": [0.0]}, state=[7.0])
    client.end_episode(episode_id, state=[8.0])
    assert [item.state for item in asking.items[1:]] == [[7.0], [8.0]]
    assert [item.state for item in other.items[1:]] == [None, None]


def test_the_verbs_say_what_kind_of_episode_it_is(client: MultiplexingClient, left: Server) -> None:
    client.start_episode("mine", training_enabled=False, should_explore=True)
    client.log_action("mine", {"a": [1.0]}, {"a": 4}, log_probs={"a": -0.5})
    client.end_episode("mine", {"a": [2.0]}, truncated=True)
    assert left.items == [
        StartEpisode("mine", "eval", True),
        Step("mine", 0, {"a": [1.0]}, logged_actions={"a": 4}, logged_log_probs={"a": -0.5}),
        EndEpisode("mine", 1, True, final_observations={"a": [2.0]}),
    ]


def test_a_client_of_one_server_takes_infos_as_rllib_s_did(log: Log) -> None:
    """The infos are accepted and not sent."""
    server = Server("only", "a", log)
    with PolicyClient(server) as client:
        client.start_episode("e")
        assert client.get_action("e", {"a": [0.0]}) == {"a": "only:a:0"}
        client.log_returns("e", {"a": 1.0}, {"a": {"training_enabled": False}})
        client.get_action("e", {"a": [0.1]})
    assert server.of(Step)[1] == Step("e", 1, {"a": [0.1]}, {"a": 1.0})


# --- ends -----------------------------------------------------------------------------------


@pytest.mark.parametrize("acts_again", [False, True])
def test_an_agent_s_first_end_counts_whether_or_not_its_server_acts_again(
    client: MultiplexingClient, left: Server, acts_again: bool
) -> None:
    """Of two ends of one agent the servers get the first, in the next step or with the episode's
    end."""
    episode_id = client.start_episode()
    client.get_action(episode_id, ALL)
    final = {"a": [2.0]}
    client.log_returns(episode_id, {}, truncations={"a": True}, final_observations=final)
    others = {"b": [1.0], "c": [1.0]} if acts_again else {"c": [1.0]}
    client.get_action(episode_id, others)
    client.log_returns(episode_id, {}, terminations={"a": True})
    client.end_episode(episode_id, {"a": [9.0], "b": [9.0]})
    told = left.items[-2] if acts_again else left.items[-1]
    assert isinstance(told, Step if acts_again else EndEpisode)
    assert told.truncations == {"a": True}
    assert not told.terminations
    assert told.final_observations == (final if acts_again else {**final, "b": [9.0]})


def test_a_team_is_paid_rewards_of_its_members_that_have_ended(log: Log) -> None:
    server = Server("left", "ab", log)
    server._spec = replace(
        server._spec,
        agents={a: replace(i, group="t") for a, i in server._spec.agents.items()},
        groups={"t": ["a", "b"]},
    )
    client = MultiplexingClient([server, Server("right", "c", log)])
    episode_id = client.start_episode()
    client.get_action(episode_id, ALL)
    client.log_returns(episode_id, {}, terminations={"a": True})
    client.get_action(episode_id, {"c": [1.0]})
    client.log_returns(episode_id, {"a": 5.0})
    client.get_action(episode_id, {"b": [1.0]})
    assert server.of(Step)[-1].rewards == {"a": 5.0}
    # A team's rewards are sent until its last member has ended.
    client.log_returns(episode_id, {"b": 1.0}, terminations={"b": True})
    client.get_action(episode_id, {"c": [1.0]})
    client.log_returns(episode_id, {"a": 7.0, "b": math.nan})
    client.end_episode(episode_id)
    (end,) = server.of(EndEpisode)
    assert (end.rewards, end.late_rewards["a"]) == ({"b": 1.0}, 7.0)
    assert math.isnan(end.late_rewards["b"]), "what is no number its server refuses"


@pytest.mark.parametrize(
    "ended", [Ended("e", 7, {"a": 1.0}), Ended("e", 1, {"a": 1.5}), Ended("e", 1, {})]
)
def test_a_server_that_counts_otherwise_is_counted(
    client: MultiplexingClient, left: Server, right: Server, ended: Ended, caplog: Any
) -> None:
    for server in (left, right):
        server.script = lambda item: ended if isinstance(item, EndEpisode) else None
    client.start_episode("e")
    client.get_action("e", {"a": [0.0]})
    client.log_returns("e", {"a": 1.0})
    client.end_episode("e")
    assert client.num_mismatches == 1, "it counts episodes"
    assert "counts differ: server 'left'" in caplog.text


def test_rounding_is_no_mismatch(client: MultiplexingClient, left: Server) -> None:
    left.script = lambda item: Ended("e", 1, {"a": 0.3}) if isinstance(item, EndEpisode) else None
    client.start_episode("e")
    client.get_action("e", {"a": [0.0]})
    client.log_returns("e", {"a": 0.1})
    client.log_returns("e", {"a": 0.2})
    client.end_episode("e")
    assert client.num_mismatches == 0


@pytest.mark.parametrize("verb", ["get_action", "log_returns", "end_episode", "abort_episode"])
@pytest.mark.parametrize("how", ["never", "end_episode", "abort_episode"])
def test_an_episode_that_is_not_open(client: MultiplexingClient, verb: str, how: str) -> None:
    if how != "never":
        client.start_episode("e")
        getattr(client, how)("e")
    with pytest.raises(EpisodeMisuse, match="episode e is not open"):
        getattr(client, verb)(*(("e", {}) if verb != "abort_episode" else ("e",)))


@pytest.mark.parametrize("verb", ["get_action", "end_episode"])
def test_an_interrupted_step_is_closed_by_an_abort(
    client: MultiplexingClient, left: Server, right: Server, verb: str
) -> None:
    def interrupt(item: Any) -> None:
        if isinstance(item, Step):
            raise KeyboardInterrupt

    client.start_episode("e")
    right.script = interrupt
    with pytest.raises(KeyboardInterrupt):
        client.get_action("e", ALL)
    left.receive()  # takes the last answer; a real transport drops the connection instead
    with pytest.raises(
        EpisodeMisuse, match=r"awaiting action at t=1.*abort_episode\(\) closes the episode"
    ):
        getattr(client, verb)("e", ALL)
    client.abort_episode("e")
    assert left.open == right.open == {}


@pytest.mark.parametrize(
    ("ids", "observations", "sentence"),
    [
        (["7", "7"], {"7": ALL}, "named twice"),
        ([7, "7"], {7: ALL, "7": ALL}, "named twice"),
        (["7", 8], {"7": ALL, "8": ALL}, "episode 8 is named, but has no observations"),
        (["7", "8"], {"7": ALL, "8": [1.0]}, "must be a dict by agent"),
        (["7", "8"], {"7": ALL, "8": {"x": [1.0]}}, "'x' belongs to no server"),
        (["7", "8"], {"7": ALL, "8": {"1": [1.0], 1: [1.0]}}, "belongs to no server|called '1'"),
        (["7", "8"], [ALL, ALL], "a dict by episode id"),
    ],
)
def test_no_episode_of_a_message_advances_if_one_of_them_cannot(
    client: MultiplexingClient, ids: list[Any], observations: Any, sentence: str
) -> None:
    for episode_id in ("7", "8"):
        client.start_episode(episode_id)
    with pytest.raises((EpisodeMisuse, AssignmentError), match=sentence):
        client.get_action(ids, observations)
    actions = client.get_action(["7", 8], {"7": ALL, 8: ALL})
    assert [actions[one]["c"] for one in ("7", 8)] == ["right:c:0"] * 2


@pytest.mark.parametrize("actions", [{}, {"a": 1}, {"a": 1, "b": 2, "c": 3, "d": 4}])
def test_logged_actions_of_other_than_the_observing_agents_are_refused(
    client: MultiplexingClient, left: Server, actions: dict[str, int]
) -> None:
    client.start_episode("e")
    with pytest.raises(EpisodeMisuse, match="an action of each agent that observes"):
        client.log_action("e", ALL, actions)
    assert left.of(Step) == []


def test_an_unknown_transport_is_refused(log: Log) -> None:
    with pytest.raises(ValueError, match="one of \\['websocket', 'http'\\], got 'grpc'"):
        MultiplexingClient(["127.0.0.1:9"], transport="grpc")  # type: ignore[arg-type]


def test_an_id_is_open_once(client: MultiplexingClient) -> None:
    client.start_episode("e")
    with pytest.raises(EpisodeMisuse, match="open already"):
        client.start_episode("e")


def test_closing_aborts_what_is_open(
    client: MultiplexingClient, left: Server, right: Server
) -> None:
    with client:
        client.start_episode("e")
    for server in (left, right):
        assert server.of(AbortEpisode) == [AbortEpisode("e", "the client closed")]
        assert server.is_closed


# --- refusals -------------------------------------------------------------------------------


def test_a_start_is_all_or_nothing(client: MultiplexingClient, left: Server, right: Server) -> None:
    right.script = refusing(StartEpisode)
    with pytest.raises(RefusedByServer, match="no such luck") as refusal:
        client.start_episode("e")
    assert (refusal.value.server_id, refusal.value.code) == ("right", 422)
    assert left.open == {}
    # The episode that is open there under this id may be another client's.
    assert not any(isinstance(item, AbortEpisode) for item in right.items)
    with pytest.raises(EpisodeMisuse):
        client.get_action("e", ALL)
    right.script = lambda item: None
    client.start_episode("e")


def test_a_refused_step_closes_the_episode_everywhere_and_no_other(
    client: MultiplexingClient, left: Server, right: Server
) -> None:
    left.script = refusing(Step, episode_id="bad")
    client.start_episode("bad")
    client.start_episode("good")
    with pytest.raises(RefusedByServer) as refusal:
        client.get_action("bad", ALL)
    error = refusal.value
    assert (error.episode_id, error.agent_id, error.expected, error.got) == (
        "bad", "a", "Box(1,)", "shape (2,)"
    )  # fmt: skip
    for server in (left, right):
        assert server.open.keys() == {"good"}
    client.get_action("good", ALL)
    client.end_episode("good")
    assert left.open == right.open == {}


def test_a_refused_end_is_aborted_where_it_was_refused(
    client: MultiplexingClient, left: Server, right: Server
) -> None:
    left.script = refusing(EndEpisode)
    client.start_episode("e")
    client.get_action("e", ALL)
    with pytest.raises(RefusedByServer):
        client.end_episode("e")
    assert left.open == right.open == {}
    assert right.of(AbortEpisode) == []


def test_a_frame_that_is_refused_as_a_whole(
    client: MultiplexingClient, left: Server, right: Server
) -> None:
    client.start_episode("e")
    client.start_episode("f")
    left.receive = lambda patience_s=None: (
        setattr(left, "_replies", None),
        [Refused("", 400, "not a batch")],
    )[1]  # type: ignore[method-assign]
    with pytest.raises(RefusedByServer, match="not a batch"):
        client.get_action(["e", "f"], {"e": ALL, "f": ALL})
    assert left.open == right.open == {}, (
        "the others' answers were taken, and the episodes closed there"
    )


# --- losses ---------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["is_lost", "is_lost_on_receive"])
@pytest.mark.parametrize("lost", ["left", "right"])
def test_a_lost_server_aborts_on_the_others(
    client: MultiplexingClient, left: Server, right: Server, when: str, lost: str
) -> None:
    gone, other = (left, right) if lost == "left" else (right, left)
    client.start_episode("e")
    client.get_action("e", ALL)
    setattr(gone, when, True)
    with pytest.raises(ServerUnavailable, match=f"{lost} is gone") as loss:
        client.get_action("e", ALL)
    assert loss.value.server_id == lost
    assert other.open == {}
    assert other.of(AbortEpisode) == [AbortEpisode("e", f"lost server {lost}")]
    with pytest.raises(EpisodeMisuse):
        client.get_action("e", ALL)


@pytest.mark.parametrize("code", [404, 410])
def test_an_episode_that_a_server_does_not_know_is_lost_and_another_may_start(
    client: MultiplexingClient, left: Server, right: Server, code: int
) -> None:
    client.start_episode("e")
    client.start_episode("other")
    left.script = lambda item: (
        Refused(item.episode_id, code, "it was restarted") if item.episode_id == "e" else None
    )
    with pytest.raises(EpisodeLost, match=r"it was restarted.*start_episode\(\)") as loss:
        client.get_action("e", ALL)
    assert (loss.value.server_id, loss.value.episode_id) == ("left", "e")
    assert right.open.keys() == {"other"}
    client.end_episode("other")
    client.start_episode("f")


def test_a_server_that_closed_the_episode_itself(
    client: MultiplexingClient, left: Server, right: Server
) -> None:
    left.script = lambda item: Aborted("e") if isinstance(item, EndEpisode) else None
    client.start_episode("e")
    client.get_action("e", ALL)
    with pytest.raises(EpisodeLost, match="'left' had already closed episode e when") as lost:
        client.end_episode("e")
    assert (lost.value.episode_id, lost.value.server_id) == ("e", "left")
    assert right.open == {}
    assert client.num_mismatches == 1, "what came after its last step is not recorded there"
    with pytest.raises(EpisodeMisuse, match="is not open"):
        client.end_episode("e")
    client.start_episode("f")


def test_an_answer_without_an_agents_action_closes_the_episode(
    client: MultiplexingClient, left: Server, right: Server
) -> None:
    left.script = lambda item: Actions("e", 0, {"a": 1}) if isinstance(item, Step) else None
    client.start_episode("e")
    with pytest.raises(
        ServerUnavailable, match=r"'left' gave no valid answer .*\['a'\] .*\['a', 'b'\]"
    ):
        client.get_action("e", ALL)
    assert right.open == {}
