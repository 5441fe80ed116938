"""What happens to an episode on all servers when one of them refuses, or is lost."""

from __future__ import annotations

import pytest
from tests.client.scripted_servers import ALL, Log, Server, refusing

from muxrl.client import (
    EpisodeLost,
    EpisodeMisuse,
    MultiplexingClient,
    RefusedByServer,
    ServerUnavailable,
)
from muxrl.protocol.messages import (
    Aborted,
    AbortEpisode,
    Actions,
    EndEpisode,
    Refused,
    StartEpisode,
    Step,
)

# --- refusals -------------------------------------------------------------------------------


def test_a_start_is_all_or_nothing(client: MultiplexingClient, left: Server, right: Server) -> None:
    right.script = refusing(StartEpisode)
    with pytest.raises(RefusedByServer, match="no such luck") as refusal:
        client.start_episode("e")
    assert (refusal.value.server_id, refusal.value.code) == ("right", 422)
    assert left.open == {}
    # It may be another client's episode that is open there under this id.
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


def test_a_lost_server_hears_of_the_abort_when_it_is_back(
    client: MultiplexingClient, left: Server, right: Server
) -> None:
    client.start_episode("e")
    right.is_lost = True
    with pytest.raises(ServerUnavailable):
        client.get_action("e", ALL)
    assert right.open.keys() == {"e"}
    right.is_lost = False
    client.start_episode("f")
    assert right.open.keys() == {"f"}
    assert right.of(AbortEpisode) == [AbortEpisode("e", "lost server right")]
    client.end_episode("f")
    assert len(right.frames) == 4, "once"


def test_many_episodes_are_aborted_in_one_message_before_any_answer_is_awaited(
    client: MultiplexingClient, left: Server, right: Server, log: Log
) -> None:
    ids = [client.start_episode() for _ in range(4)]
    log.clear()
    client.abort_episode(ids)
    assert log == [("send", "left"), ("send", "right"), ("receive", "left"), ("receive", "right")]
    assert left.open == right.open == {}


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


def test_all_servers_lost(client: MultiplexingClient, left: Server, right: Server) -> None:
    client.start_episode("e")
    left.is_lost = right.is_lost = True
    with pytest.raises(ServerUnavailable):
        client.get_action("e", ALL)
    client.close()


def test_a_server_that_closed_the_episode_itself(
    client: MultiplexingClient, left: Server, right: Server
) -> None:
    left.script = lambda item: Aborted("e") if isinstance(item, EndEpisode) else None
    client.start_episode("e")
    client.get_action("e", ALL)
    with pytest.raises(EpisodeLost, match="'left' had closed episode e before its end") as lost:
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
    with pytest.raises(ServerUnavailable, match=r"'left' answered steps .*\['a'\] .*\['a', 'b'\]"):
        client.get_action("e", ALL)
    assert right.open == {}
