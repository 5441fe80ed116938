"""Plays what each client does in `test_clients.py`; prints what it saw, one JSON object a line.

``ScriptedEpisodes.java`` and ``scripted_episodes.cpp`` do the same. The interpreter of a simulation
runs this program beside a copy of ``muxrl_client.py``, without muxrl and NumPy.

Arguments: address, token.
"""

import json
import sys

import muxrl_client
from muxrl_client import ClientError, PolicyClient

PATIENCE_S = 2.4
TEXT = 'quotes " and \\, é, ☃, 😀'


def show(**record):
    sys.stdout.write(json.dumps(record) + "\n")


def observe(episode, t):
    a = {"observation": [0.1 * t, episode / 8, 1e-3], "action_mask": [1, 0, 1, t % 2]}
    seen = {"b": [[t / 7, -episode / 3], [0.5, -2.5e-7 * t]]}
    if t < 4:
        seen["a"] = a
    if t % 2:
        seen["c"] = (t + episode) % 5
    return seen


def play(client, episode):
    episode_id = client.start_episode(f"episode-{episode}", training_enabled=episode % 2 == 0)
    for t in range(6):
        seen = observe(episode, t)
        if t == 1:
            actions = {"a": 2, "b": [0.5, -0.25], "c": [1, 2]}
            client.log_action(episode_id, seen, actions, log_probs={"a": -0.5})
        else:
            actions = client.get_action(episode_id, seen)
            show(episode=episode_id, t=t, actions=actions)
        client.log_returns(episode_id, {"a": 0.1 * t, "b": -1.5})
        client.log_returns(episode_id, {"b": 0.25}, terminations={"a": t == 3})
    client.log_returns(episode_id, {}, truncations={"c": True}, final_observations={"c": 3})
    last = {"b": [[1.0, 2.0], [3.0, 4.0]]}
    ended = client.end_episode(
        episode_id, last, truncated=episode % 2 == 0, metrics={"win": 1, "way": {"a": 2.5}}
    )
    show(episode=episode_id, **ended)


def show_error(verb):
    """Prints the error that a call raises, or that it raised none."""
    try:
        verb()
    except ClientError as error:
        record = {"error": type(error).__name__, "has_message": bool(str(error))}
        if isinstance(error, muxrl_client.RefusedByServer):
            record.update(code=error.code, agent_id=error.agent_id, expected=error.expected)
            record.update(got=error.got)
        show(**record)
    else:
        show(error=None)


def fail(client, address, token):
    """Makes one refused or wrong call after another."""
    episode_id = client.start_episode("refused")
    show_error(lambda: client.get_action(episode_id, {"b": [1, 2, 3]}))
    show_error(lambda: client.get_action(episode_id, {}))  # the refusal has closed the episode
    client.start_episode("refused-at-its-end")
    show_error(lambda: client.end_episode("refused-at-its-end", {"nobody": 1}))
    client.start_episode("misused")
    show_error(lambda: client.start_episode("misused"))
    show_error(lambda: client.log_action("misused", observe(0, 0), {"a": 2}))
    client.start_episode("nan")
    show_error(lambda: client.get_action("nan", {"b": [[float("nan"), 0], [0, 0]]}))
    # More bytes than the server's limit.
    show_error(lambda: client.get_action("misused", {"c": [1] * 300000}))
    show_error(lambda: client.start_episode("a/b"))
    client.start_episode("lost")
    other = PolicyClient(address, token)
    # The same id as the first client's episode: the server takes it for a repeat.
    other.start_episode("lost")
    other.abort_episode("lost")
    show_error(lambda: client.get_action("lost", observe(0, 0)))
    show_error(lambda: PolicyClient(address, "wrong"))
    show(episode=client.start_episode(TEXT))
    client.abort_episode(TEXT, TEXT)
    other.start_episode("left open")
    other.close()


def outlast(client, impatient):
    """Plays on through the troubles that the first number observed by "b" stands for."""
    client.start_episode("outlast")
    for t, trouble in enumerate(["half", "cut", "swallow", "outage", "none", "hold"]):
        seen = {"b": [[100 + t, 0], [0, 0]]}
        if trouble == "hold":
            impatient.start_episode("impatient")
            show_error(lambda: impatient.get_action("impatient", {"c": 1}))
        show(trouble=trouble, actions=client.get_action("outlast", seen))
        client.log_returns("outlast", {"b": 1.0})
    last = [[1.0, 2.0], [3.0, 4.0]]
    client.log_returns("outlast", {}, truncations={"b": True}, final_observations={"b": last})
    last[0][0] = float("nan")  # the server refuses the NaN if the client has not kept a copy
    show(**client.end_episode("outlast"))
    client.start_episode("long outage")
    show_error(lambda: client.get_action("long outage", {"b": [[106, 0], [0, 0]]}))
    client.start_episode("after it")  # the client waits until the server accepts it
    show(**client.end_episode("after it"))


def main():
    address, token = sys.argv[1:]
    with PolicyClient(address, token, patience_s=PATIENCE_S) as client:
        show(agents=sorted(client.spec["agents"]), is_evaluation=client.is_evaluation)
        for episode in range(4):
            play(client, episode)
        fail(client, address, token)
        outlast(client, PolicyClient(address, token, PATIENCE_S, update_timeout_s=0.2))


main()
