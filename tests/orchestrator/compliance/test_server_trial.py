"""The suite finds what a server does wrong: a real server breaks each rule on purpose."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from tests.compliance.real_servers import SEES, TOKEN, make_plan, running

from muxrl.orchestrator.compliance import episode_rules, notes, subject
from muxrl.orchestrator.compliance.server_trial import RULES, judge, judge_server
from muxrl.orchestrator.compliance.subject import Subject
from muxrl.orchestrator.compliance.verdicts import Verdict, table
from muxrl.protocol.messages import Actions, Ended
from muxrl.servers.config import LimitsConfig
from muxrl.servers.episodes import blocks, ledger, step_check, steps, store
from muxrl.servers.network import front, http
from muxrl.servers.network.message_limits import MessageLimits
from muxrl.servers.server import PolicyServer


@pytest.fixture
def server() -> Iterator[PolicyServer]:
    agents = {agent: SEES[agent] for agent in "ab"}
    limits = LimitsConfig(max_episodes=8, episode_timeout_s=1.0)
    with running(make_plan("RANDOM", agents, token=TOKEN, limits=limits)) as server:
        yield server


def nothing(*_: Any, **__: Any) -> None:
    """Checks nothing; stands in for any check."""


def first_only(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that answers for fewer agents than were asked for."""

    def changed(self: Any, *arguments: Any) -> Any:
        reply = function(self, *arguments)
        if isinstance(reply, Actions):
            reply.actions = dict(list(reply.actions.items())[:1])
        return reply

    return changed


def forgetful(function: Callable[..., Ended]) -> Callable[..., Ended]:
    """Returns a function that counts no rewards."""

    def changed(*arguments: Any) -> Ended:
        reply = function(*arguments)
        reply.returns = {}
        return reply

    return changed


def any_value(space: Any, value: Any, where: str = "") -> Any:
    return np.zeros(space.shape, np.float32)


def as_given(self: Any, given: Any, others: Any) -> Any:
    return given


def as_training(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that counts evaluations as training."""
    return lambda self, item, now: function(self, replace(item, mode="train"), now)


BREAKS: list[tuple[Any, str, Any, set[str]]] = [
    (front, "check_access", nothing, {"the_token", "no_web_page"}),
    (ledger, "check_episode_id", nothing, {"ids"}),
    (step_check, "conform", any_value, {"shapes", "no_numbers", "dtypes"}),
    (step_check.StepCheck, "_rewards", as_given,
     {"large_rewards", "unknown_agents", "whole_steps"}),
    (step_check.StepCheck, "_log_probs", as_given, {"log_probs"}),
    (steps.Steps, "repeated", nothing, {"repeats", "other_steps"}),
    (store.EpisodeStore, "_end", forgetful(store.EpisodeStore._end),
     {"rewards", "late_rewards", "both_ends"}),
    (store.EpisodeStore, "_start", as_training(store.EpisodeStore._start), {"evaluation"}),
    (blocks.Block, "answer_of", first_only(blocks.Block.answer_of), {"actions", "late_agents"}),
    (store.EpisodeStore, "expire", lambda self, now: [], {"silence"}),
    (MessageLimits, "_counted", lambda self, batch: batch.items, {"many_items"}),
    (http, "document", lambda: {"paths": {}}, {"the_document"}),
]  # fmt: skip


@pytest.mark.parametrize(("where", "name", "broken", "finds"), BREAKS)
def test_each_broken_rule_is_found(
    server: PolicyServer,
    monkeypatch: pytest.MonkeyPatch,
    where: Any,
    name: str,
    broken: Any,
    finds: set[str],
) -> None:
    monkeypatch.setattr(where, name, broken)
    monkeypatch.setattr(subject, "ANSWER_S", 2.0)
    monkeypatch.setattr(episode_rules, "_LATE_S", 0.0)
    trial = Subject(server.address, TOKEN)
    rules = {rule.check.__name__: rule for rule in RULES}
    for rule in finds:
        verdict = judge(rules[rule], trial)
        assert verdict.outcome == "broken", verdict
        assert verdict.detail.startswith("expected "), verdict


def test_each_rule_names_a_section_of_the_page() -> None:
    page = (Path(__file__).parents[3] / "docs/protocol.md").read_text()
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 -]", "", h.lower()).replace(" ", "-") for h in headings}
    for where in {rule.where for rule in RULES} | {where for where, _ in notes.RULES.values()}:
        name, _, anchor = Verdict(where, "", "broken").section.partition("#")
        assert name == "docs/protocol.md"
        assert anchor in anchors


def test_rules_that_muxrl_needs_are_told_apart_from_hardening() -> None:
    needed = {rule.check.__name__ for rule in RULES if rule.is_needed}
    assert {"the_spec", "actions", "repeats", "truncated_agents", "evaluation"} <= needed
    assert not needed & {"the_token", "large_messages", "malformed_frames", "no_numbers"}
    broken = Verdict("limits", "a long text is refused", "broken", "expected 413; came 200", False)
    shown = table([Verdict("rule 2", "t counts", "ok"), broken])
    hardening = shown.partition("they harden a server, or help clients in other languages\n")[2]
    assert hardening == (
        "broken   limits  a long text is refused\n"
        "         expected 413; came 200; see docs/protocol.md#limits\n\n"
        "1 needed: 1 ok, 0 broken, 0 skipped\n1 others: 0 ok, 1 broken, 0 skipped"
    )


def test_a_missing_server_is_reported_and_no_other_rule_is_tried() -> None:
    (verdict,) = judge_server("127.0.0.1:9")
    assert (verdict.outcome, verdict.where) == ("broken", "endpoints")
    assert "GET http://127.0.0.1:9/v1/spec; came ConnectionRefusedError" in verdict.detail
