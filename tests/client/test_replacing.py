"""Some agents of a server act at random or untrained; it is told of it, and acts for the others."""

from __future__ import annotations

import numpy as np
from tests.client.scripted_servers import ALL, Log, Server

from muxrl.client import MultiplexingClient
from muxrl.client.random_policy import RandomTransport
from muxrl.client.replacing import RandomAgents, UntrainedAgents
from muxrl.protocol.messages import StartEpisode, Step


def play(client: MultiplexingClient, num_steps: int) -> None:
    episode_id = client.start_episode("e", training_enabled=False)
    for _ in range(num_steps):
        client.get_action(episode_id, ALL)
    client.end_episode(episode_id)
    assert client.num_mismatches == 0


def test_the_server_is_told_the_random_actions_of_one_side_only(left: Server, log: Log) -> None:
    right = Server("right", "cd", log)
    everybody = {**ALL, "d": [4.0]}
    drawn = []
    for seed in (1, 1, 2):
        right.items.clear()
        client = MultiplexingClient([left, RandomAgents(right, ["d"], seed)])
        episode_id = client.start_episode(training_enabled=False)
        for _ in range(200):
            client.get_action(episode_id, everybody)
        client.end_episode(episode_id)
        steps = right.of(Step)
        assert all(step.logged_actions.keys() == {"d"} for step in steps)
        drawn.append([int(step.logged_actions["d"]) for step in steps])
    assert drawn[0] == drawn[1] != drawn[2]
    counts = np.bincount(drawn[0], minlength=9)
    assert len(counts) == 9  # of Discrete(9)
    assert counts.min() > 0
    assert not any(step.logged_actions for step in left.of(Step))


def test_random_actions_are_not_what_an_environment_draws_with_their_seed(log: Log) -> None:
    """A game may ask for the number that it has drawn, and evaluations seed both alike."""
    right = Server("right", "d", log)
    client = MultiplexingClient([RandomAgents(right, ["d"], 7)])
    transport = RandomTransport(Server("right", "d", log).fetch_spec(), 7)
    alone = MultiplexingClient([transport])
    for one in (client, alone):
        one.start_episode("e", training_enabled=False)
    acted = [int(alone.get_action("e", {"d": [4.0]})["d"]) for _ in range(300)]
    for _ in range(300):
        client.get_action("e", {"d": [4.0]})
    assert set(acted) == set(range(9))
    hidden = np.random.default_rng(7).integers(9, size=300)
    for drawn in (acted, [int(step.logged_actions["d"]) for step in right.of(Step)]):
        assert sum(drawn == hidden) < 70  # 33 by chance


def test_a_step_without_the_side_is_left_alone(left: Server, right: Server) -> None:
    client = MultiplexingClient([RandomAgents(left, ["b"]), right])
    episode_id = client.start_episode()
    client.get_action(episode_id, {"a": [1.0], "c": [3.0]})
    client.end_episode(episode_id)
    assert left.of(Step)[0].logged_actions == {}


def test_untrained_agents_are_named_as_an_episode_starts(left: Server, right: Server) -> None:
    play(MultiplexingClient([UntrainedAgents(left), right]), 2)
    assert left.of(StartEpisode) == [StartEpisode("e", "eval", None, ["a", "b"])]
    assert right.of(StartEpisode) == [StartEpisode("e", "eval")]
    left.items.clear()
    play(MultiplexingClient([UntrainedAgents(left, ["b"]), right]), 2)
    assert left.of(StartEpisode)[0].untrained == ["b"]
    assert not any(step.logged_actions for step in left.of(Step))
