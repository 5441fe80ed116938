"""Every rule of the compliance suite holds on every kind of server and on the gateway."""

from __future__ import annotations

import re
from pathlib import Path

from tests.compliance.gateways import gateway_to
from tests.compliance.real_servers import PPO_SETTINGS, SMALL_MODEL, TOKEN, MakeServer, make_plan

from muxrl.orchestrator.compliance.server_trial import RULES, judge_server
from muxrl.orchestrator.compliance.verdicts import Verdict
from muxrl.protocol.spaces import Box, DictSpace
from muxrl.servers.config import LimitsConfig
from muxrl.servers.server import PolicyServer

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"
TEAM = {agent: Box((2,)) for agent in ("a", "b")}
MASKED = DictSpace({"observation": Box((2,)), "action_mask": Box((3,), "int8", 0, 1)})


def skipped(verdicts: list[Verdict]) -> set[str]:
    """Returns the rules that were not tried; fails if any rule was broken."""
    broken = [verdict for verdict in verdicts if verdict.outcome == "broken"]
    assert not broken
    assert len(verdicts) == len(RULES) + 1
    return {verdict.rule for verdict in verdicts if verdict.outcome == "skipped"}


def test_every_numbered_rule_of_the_page_is_tried() -> None:
    section = (
        PAGE.read_text().split("\n## Rules of an episode on one server\n")[1].split("\n## ")[0]
    )
    on_the_page = {f"rule {number}" for number in re.findall(r"^(\d+)\. ", section, re.MULTILINE)}
    assert {rule.where for rule in RULES if rule.where.startswith("rule")} == on_the_page


def test_rules_hold_on_each_kind_of_server(server: PolicyServer) -> None:
    left_out = skipped(list(judge_server(server.address, TOKEN)))
    # Not tried: two rules on masks, two on time, those on teams, the state and missing tokens.
    assert len(left_out) == 7, left_out
    assert server.status().num_open_episodes == 0, "nothing is left open"


def test_rules_hold_on_a_gateway(make_server: MakeServer) -> None:
    """Behind it are a learning team, an agent with a mask, and one more; episodes expire soon."""
    limits = LimitsConfig(max_episodes=8, episode_timeout_s=1.0)
    plans = [
        make_plan("QMIX", TEAM, groups={"team": ("a", "b")}, limits=limits),
        make_plan("RANDOM", {"c": MASKED}, server_id="masked", limits=limits),
        make_plan("RANDOM", {"d": Box((1,))}, limits=limits),
    ]
    with gateway_to(*map(make_server, plans)) as gateway:
        left_out = skipped(list(judge_server(gateway.address)))
    assert len(left_out) == 4, left_out


def test_rules_hold_where_there_are_masks_teams_and_short_silences(make_server: MakeServer) -> None:
    limits = LimitsConfig(max_episodes=8, episode_timeout_s=1.0)
    team = dict.fromkeys("ab", MASKED)
    plan = make_plan("QMIX", team, groups={"team": ("a", "b")}, limits=limits, state_size=2)
    server = make_server(plan)
    assert len(skipped(list(judge_server(server.address)))) < 12


def test_rules_hold_where_agents_come_back(make_server: MakeServer) -> None:
    limits = LimitsConfig(max_episodes=8)
    server = make_server(make_plan("RANDOM", TEAM, agents_return=True, limits=limits))
    rule = "an observation of an agent that is done is refused"
    assert rule in skipped(list(judge_server(server.address)))


def test_rules_hold_for_boxes_in_which_a_learning_policy_is_clipped(
    make_server: MakeServer,
) -> None:
    limits = LimitsConfig(max_episodes=8)
    agents = dict.fromkeys("ab", (Box((2,)), Box((6,), low=0, high=5)))
    plan = make_plan("PPO", agents, settings=PPO_SETTINGS, model=SMALL_MODEL, limits=limits)
    server = make_server(plan)
    assert len(skipped(list(judge_server(server.address)))) < 12
