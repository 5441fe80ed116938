"""A server refuses nonsense in the protocol's words, and correct clients notice nothing of it."""

from __future__ import annotations

import logging
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.compliance.fuzz import Fuzz, Outcome
from tests.compliance.gateways import gateway_to
from tests.compliance.real_servers import (
    PPO_SETTINGS,
    SEES,
    SMALL_MODEL,
    TOKEN,
    MakeServer,
    make_plan,
    running,
)
from tests.compliance.right_client import Echo, RightClient, learned_return
from tests.nights import at_night

from muxrl.protocol.spaces import Box, DictSpace, MultiBinary
from muxrl.servers.config import LimitsConfig, ServerPlan
from muxrl.servers.episodes.store import BROKEN
from muxrl.servers.server import PolicyServer
from muxrl.servers.serving import Serving

_MASKED = DictSpace({"action_mask": MultiBinary(3), "observation": Box((2,))})
# The limits leave room for the episodes that the fuzz never ends.
_LIMITS = LimitsConfig(max_message_bytes=40_000, episode_timeout_s=10.0, tombstone_s=10.0)
_ECHO = make_plan(
    "tests.compliance.right_client:Echo", {**SEES, "d": _MASKED}, server_id="echo", token=TOKEN,
    state_size=3, limits=_LIMITS,
)  # fmt: skip
_PPO = make_plan(
    "PPO", {agent: SEES[agent] for agent in "ab"},
    settings={**PPO_SETTINGS, "lr": 0.03, "num_epochs": 4},
    model=SMALL_MODEL, token=TOKEN, limits=_LIMITS,
)  # fmt: skip
_PARTS = 5
_GROWTH_MIB = 64
"""By so much memory may grow from the second part of the requests to the last, with the episodes
that a server remembers."""


def lengths(by_day: int) -> list[Any]:
    """Returns the numbers of requests to try: at night a hundred times as many, too."""
    return at_night([by_day, 100 * by_day], left_out=[100 * by_day])


@pytest.fixture
def echo() -> Iterator[PolicyServer]:
    with running(_ECHO) as server:
        yield server


def hold(
    address: str, plan: ServerPlan, num: int, caplog: pytest.LogCaptureFixture, token: str = TOKEN
) -> Outcome:
    """Fuzzes a server beside a client that plays correctly; returns all outcomes.

    Fails if that client notices anything, or if the server answers in other words than its own.
    """
    whole, used_mib = Outcome(), []
    for part in range(_PARTS):
        with RightClient(address, plan, is_echo=plan is _ECHO) as right:
            outcome = Fuzz(address, plan, part, token).run(num // _PARTS)
        used_mib.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10)
        assert not right.wrong, right.wrong[:5]
        assert right.num_steps > 20
        assert_in_its_own_words(outcome, caplog)
        whole.by_status += outcome.by_status
        whole.num_rows += outcome.num_rows
    assert used_mib[-1] - used_mib[1] < _GROWTH_MIB
    # Enough frames were right to open episodes, to step and to end them.
    assert whole.by_status["200"] > num // 20
    assert whole.by_status["frame 200"] > num // 40
    return whole


def assert_in_its_own_words(outcome: Outcome, caplog: pytest.LogCaptureFixture) -> None:
    assert not outcome.faults, outcome
    # The client whose frames are mutated logs that the server's counts differ from its own.
    others = [r for r in caplog.records if r.name != "muxrl.client.multiplexer"]
    assert not [r.getMessage() for r in others if r.levelno >= logging.ERROR or r.exc_info]
    caplog.clear()


def assert_well(server: PolicyServer) -> None:
    status = server.status()
    assert not status.problem
    assert BROKEN not in [warning.what for warning in status.warnings]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("num", lengths(1_500))
def test_right_clients_of_a_trainer_notice_nothing(
    num: int, echo: PolicyServer, caplog: pytest.LogCaptureFixture
) -> None:
    outcome = hold(echo.address, _ECHO, num, caplog)
    assert outcome.num_rows > num // 200
    assert_well(echo)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("num", lengths(800))
def test_right_clients_of_a_gateway_notice_nothing(
    num: int, echo: PolicyServer, caplog: pytest.LogCaptureFixture
) -> None:
    with gateway_to(echo, token=TOKEN) as served:
        hold(served.address, _ECHO, num, caplog, token="")
        assert served.gateway.episodes.counts.num_episodes > 0
        assert served.gateway.client.num_mismatches == 0
    assert_well(echo)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("num", lengths(500))
def test_right_clients_of_ppo_notice_nothing_and_it_learns_afterwards(
    num: int, make_server: MakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_server(_PPO)
    hold(server.address, _PPO, num, caplog)
    assert_well(server)
    before = server.status()
    learned = learned_return(server.address, TOKEN)
    after = server.status()
    assert after.num_episodes >= before.num_episodes + 80
    assert after.num_env_steps >= before.num_env_steps + 80 * 20
    assert after.weights_seq_no > before.weights_seq_no
    if num > 10_000:
        assert learned > learned_return(make_server(_PPO).address, TOKEN) - 8


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("num", lengths(400))
def test_mutated_requests_of_a_run_are_answered_in_its_own_words(
    num: int, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    serving = Serving(Echo, "127.0.0.1", 0, TOKEN, lambda: None)
    try:
        outcome = Fuzz(serving.address, _ECHO, 1, folder=str(tmp_path)).run(num)
    finally:
        serving.stop()
    assert_in_its_own_words(outcome, caplog)
    assert outcome.by_status["200"] > 20
