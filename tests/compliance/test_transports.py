"""What transports do beyond the rules of `test_rules`: limits, JSON written by hand, Prometheus."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families
from tests.compliance.real_servers import MAX_BYTES, TOKEN, make_plan, running

from muxrl.client import MultiplexingClient, RefusedByServer, ServerUnavailable
from muxrl.protocol.spaces import Box, MultiDiscrete, Space
from muxrl.servers.server import PolicyServer

BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def url(ppo: PolicyServer) -> str:
    return f"http://{ppo.address}"


def samples(url: str) -> dict[tuple[str, str], float]:
    """Returns what Prometheus's own parser reads, by name and label (without the server's)."""
    answer = requests.get(f"{url}/metrics", headers=BEARER)
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {}
    for family in text_string_to_metric_families(answer.text):
        assert family.documentation
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("server") == "ppo"
            found[sample.name, "".join(labels.values())] = sample.value
            assert sample.name.endswith("_total") == (family.type == "counter")
    return found


def test_prometheus_reads_what_a_server_counts(url: str) -> None:
    def post(path: str, body: dict[str, Any]) -> Any:
        return requests.post(url + path, json=body, headers=BEARER).json()

    before = samples(url)
    assert before["muxrl_phase", "ready"] == 1.0
    names = ("batches_ahead", "policy_lag_mean", "policy_lag_max", "weights_version", "websockets",
             "update_seconds_total", "held_seconds_total", "training_iterations_total",
             "expired_episodes_total", "open_episodes")  # fmt: skip
    assert {(f"muxrl_{name}", "") for name in names} <= before.keys()
    step = {"type": "step", "episode_id": "counted", "observations": {"a": [0.0, 0.0]}}
    post("/v1/episodes", {"episode_id": "counted"})
    for t in range(3):
        post("/v1/step", {"items": [{**step, "t": t}]})
    assert post("/v1/step", {"items": [{**step, "t": 7}]})["replies"][0]["code"] == 409
    post("/v1/episodes/counted/end", {"t": 3})
    after = samples(url)
    rose = {key: after[key] - before.get(key, 0.0) for key in after}
    assert rose["muxrl_env_steps_total", ""] == rose["muxrl_agent_steps_total", ""] == 3
    assert rose["muxrl_episodes_total", "ended"] == 1
    assert rose["muxrl_episodes_total", "aborted"] == 0
    assert rose["muxrl_refusals_total", "409"] == 1
    assert after["muxrl_open_episodes", ""] == before["muxrl_open_episodes", ""]
    # Two items of one episode, and four messages with steps, one of which was refused.
    assert rose["muxrl_exchange_seconds_count", ""] == 6
    assert rose["muxrl_forward_seconds_count", ""] == 3
    assert 0.0 < rose["muxrl_forward_seconds_sum", ""] < rose["muxrl_exchange_seconds_sum", ""]
    assert rose["muxrl_exchange_seconds_bucket", "+Inf"] == 6
    assert after["muxrl_restarts_total", ""] == 0.0


@pytest.mark.parametrize("transport", ["websocket", "http"])
def test_a_client_with_a_wrong_token_is_refused(ppo: PolicyServer, transport: Any) -> None:
    with pytest.raises(ServerUnavailable, match=r"answered 401: .*another one came"):
        MultiplexingClient([ppo.address], token="wrong", transport=transport)


@pytest.mark.parametrize("transport", ["http", "websocket"])
def test_a_client_with_a_message_over_the_limit_is_refused(
    ppo: PolicyServer, transport: Any
) -> None:
    with MultiplexingClient([ppo.address], token=TOKEN, transport=transport) as client:
        episode_id = client.start_episode()
        try:
            with pytest.raises((ServerUnavailable, RefusedByServer), match="limit"):
                client.get_action(episode_id, {"a": np.zeros(MAX_BYTES, np.float32)})
            client.abort_episode(client.start_episode())
        finally:
            for left_open in list(ppo.policies.store._table.slot_of):
                url = f"http://{ppo.address}/v1/episodes/{left_open}/abort"
                requests.post(url, headers=BEARER)


@pytest.mark.parametrize("transport", ["websocket", "http"])
def test_actions_are_arrays_over_every_transport(transport: Any) -> None:
    spaces: dict[str, Space] = {"a": Box((2,), "float32", -1.0, 1.0), "b": MultiDiscrete((2, 3))}
    agents = {agent: (Box((2,)), space) for agent, space in spaces.items()}
    with (
        running(make_plan("RANDOM", agents)) as server,
        MultiplexingClient([server.address], transport=transport) as client,
    ):
        episode_id = client.start_episode()
        actions = client.get_action(episode_id, {"a": [0.0, 0.0], "b": [0.0, 0.0]})
    kinds = {agent: (type(action), action.dtype.name) for agent, action in actions.items()}
    for action in actions.values():
        action *= 2  # the simulation may change its actions
    assert kinds == {"a": (np.ndarray, "float32"), "b": (np.ndarray, "int64")}
