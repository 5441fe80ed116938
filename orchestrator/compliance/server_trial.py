"""Tries all rules for servers, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from muxrl.orchestrator.compliance import endpoint_rules, episode_rules, value_rules
from muxrl.orchestrator.compliance.subject import Subject
from muxrl.orchestrator.compliance.verdicts import Broken, Rule, Skipped, Verdict

RULES = (*endpoint_rules.RULES, *episode_rules.RULES, *value_rules.RULES)


def judge(rule: Rule, subject: Subject) -> Verdict:
    """Tries one rule over HTTP, and if it is about items, over the WebSocket, too."""

    def verdict(outcome: Literal["ok", "broken", "skipped"], detail: str = "") -> Verdict:
        return Verdict(rule.where, rule.text, outcome, detail, rule.is_needed)

    for over_websocket in (False, True) if rule.has_items else (False,):
        subject.over_websocket = over_websocket
        where = f" ({'msgpack over WebSocket' if over_websocket else 'JSON over HTTP'})"
        try:
            try:
                rule.check(subject)
            finally:
                subject.tidy()
        except Broken as broken:
            return verdict("broken", str(broken) + (where if rule.has_items else ""))
        except Skipped as reason:
            return verdict("skipped", str(reason))
    return verdict("ok")


def judge_server(address: str, token: str = "") -> Iterator[Verdict]:
    """Tries all rules on a server, and yields a verdict on each.

    Args:
        address: "host:port" or "http://host:port".
        token: bearer token, "" for none.

    Raises:
        ValueError: `address` is no address.
    """
    spec_rule = ("endpoints", "GET /v1/spec describes the server and its agents")
    try:
        subject = Subject(address, token)
    except Broken as broken:
        yield Verdict(*spec_rule, "broken", f"{broken}; no other rule can be tried")
        return
    yield Verdict(*spec_rule, "ok")
    for rule in RULES:
        yield judge(rule, subject)
