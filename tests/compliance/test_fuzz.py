"""Whatever is sent, a server answers in its own words, and learns afterwards as before."""

from __future__ import annotations

import logging

import pytest
from tests.compliance.fuzz import Outcome, fuzz
from tests.compliance.real_servers import (
    PPO_SETTINGS,
    SEES,
    SMALL_MODEL,
    TOKEN,
    MakeServer,
    make_plan,
)

from muxrl.client import MultiplexingClient
from muxrl.orchestrator.gateway.served import ServedGateway
from muxrl.servers.config import LimitsConfig
from muxrl.servers.server import PolicyServer


@pytest.fixture(scope="module")
def ppo(make_server: MakeServer) -> PolicyServer:
    """With room for the episodes that the fuzz leaves open."""
    limits = LimitsConfig(max_message_bytes=20_000)
    agents = {agent: SEES[agent] for agent in "ab"}
    return make_server(
        make_plan("PPO", agents, settings=PPO_SETTINGS, model=SMALL_MODEL, token=TOKEN,
                  limits=limits)
    )  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1])
def test_nothing_that_is_sent_is_an_error_of_the_server(
    seed: int, ppo: PolicyServer, caplog: pytest.LogCaptureFixture
) -> None:
    outcome = fuzz(ppo.address, TOKEN, 1_000, seed)
    assert_all_in_its_own_words(outcome, caplog)
    assert not ppo.status().problem


def test_nor_of_a_gateway(ppo: PolicyServer, caplog: pytest.LogCaptureFixture) -> None:
    served = ServedGateway(lambda: MultiplexingClient([ppo.address], token=TOKEN))
    served.start()
    try:
        outcome = fuzz(served.address, "", 1_000, seed=3)
        assert_all_in_its_own_words(outcome, caplog)
        assert served.gateway.episodes.counts.num_episodes > 0
        assert served.gateway.num_mismatches == 0
    finally:
        assert served.stop()
    assert not ppo.status().problem


def assert_all_in_its_own_words(outcome: Outcome, caplog: pytest.LogCaptureFixture) -> None:
    assert outcome.num_requests == 1_000
    assert not [status for status in outcome.by_status if status.endswith("500")], outcome
    assert not [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    # Enough of it was right to open episodes, step and end them.
    assert outcome.by_status["200"] > 20
    assert outcome.by_status["frame 200"] > 20


def test_it_learns_afterwards(ppo: PolicyServer) -> None:
    fuzz(ppo.address, TOKEN, 300, seed=2)
    before = ppo.status()
    with MultiplexingClient({"ppo": ppo.address}, token=TOKEN) as client:
        for number in range(4):
            episode_id = client.start_episode(f"after-{number}")
            for _ in range(25):
                client.get_action(episode_id, {a: [0.1, 0.2] for a in "ab" if a in SEES})
                client.log_returns(episode_id, {"a": 1.0, "b": 0.0})
            client.end_episode(episode_id)
    after = ppo.status()
    assert after.num_episodes >= before.num_episodes + 4
    assert after.num_env_steps >= before.num_env_steps + 100
    assert after.weights_seq_no > before.weights_seq_no
