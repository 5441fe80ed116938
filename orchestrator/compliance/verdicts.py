"""Rules, the verdicts on them, and the table that lists these."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

Check = Callable[[Any], None]
"""Tries a rule on a server: raises `Broken` or `Skipped`, and need not tidy up."""


class Broken(Exception):
    """A rule is broken.

    Args:
        expected: what the rule wants.
        came: what came instead.
    """

    def __init__(self, expected: str, came: object) -> None:
        super().__init__(f"expected {expected}; came {_short(came)}")


class Skipped(Exception):
    """A rule cannot be tried here; the text says why."""


class Rule(NamedTuple):
    """A rule for servers.

    Attributes:
        where: its place in docs/protocol.md.
        text: the rule in words.
        check: tries it.
        has_items: whether it is tried over both transports.
        is_needed: whether muxrl's clients and runs need it; other rules harden a server against
            mistakes, strangers and load, or are for clients in other languages.
    """

    where: str
    text: str
    check: Check
    has_items: bool
    is_needed: bool


class Rules(list[Rule]):
    """Rules in the order in which they are tried.

    Args:
        has_items: `Rule.has_items` of rules that do not set it.
    """

    def __init__(self, *, has_items: bool = True) -> None:
        super().__init__()
        self._has_items = has_items

    def of(
        self, where: str, *, has_items: bool | None = None, is_needed: bool = False
    ) -> Callable[[Check], Check]:
        """Returns a decorator that adds a function as a rule; its docstring is the rule's text."""
        tries_both = self._has_items if has_items is None else has_items

        def add(check: Check) -> Check:
            text = " ".join((check.__doc__ or "").split())
            self.append(Rule(where, text, check, tries_both, is_needed))
            return check

        return add


_SECTIONS = {
    "transports": "transports",
    "endpoints": "endpoints",
    "an episode": "an-episode",
    "refusals": "refusals",
    "limits": "limits",
    "rule": "rules-of-an-episode-on-one-server",
    "across": "rules-across-servers-what-the-multiplexing-client-adds",
    "the command": "does-mine-keep-the-rules",
}
"""Anchors in docs/protocol.md, by the beginning of a rule's place."""


class Verdict(NamedTuple):
    """What was found of a rule.

    Attributes:
        where: its place in docs/protocol.md.
        rule: the rule in words.
        outcome: whether it is kept.
        detail: why it is not ok, or "".
        is_needed: see `Rule`.
    """

    where: str
    rule: str
    outcome: Literal["ok", "broken", "skipped"]
    detail: str = ""
    is_needed: bool = True

    @property
    def section(self) -> str:
        """The section of docs/protocol.md that says more."""
        anchors = (a for prefix, a in _SECTIONS.items() if self.where.startswith(prefix))
        return f"docs/protocol.md#{next(anchors)}"


def expect(condition: object, expected: str, came: object) -> None:
    """Raises `Broken` unless the condition holds."""
    if not condition:
        raise Broken(expected, came)


def table(verdicts: Sequence[Verdict]) -> str:
    """Returns a line for each rule, with details below it, and the counts at the end."""
    width = max(len(verdict.where) for verdict in verdicts)
    needed = [verdict for verdict in verdicts if verdict.is_needed]
    others = [verdict for verdict in verdicts if not verdict.is_needed]
    if not others:
        return "\n".join([*_lines(needed, width), "", _counts("rules", needed)])
    return "\n".join(
        [
            "needed by muxrl's clients and runs",
            *_lines(needed, width),
            "",
            "not needed by muxrl: they harden a server, or help clients in other languages",
            *_lines(others, width),
            "",
            _counts("needed", needed),
            _counts("others", others),
        ]
    )


def _lines(verdicts: Sequence[Verdict], width: int) -> list[str]:
    lines = []
    for verdict in verdicts:
        lines.append(f"{verdict.outcome:7}  {verdict.where:{width}}  {verdict.rule}")
        see = f"; see {verdict.section}" if verdict.outcome == "broken" else ""
        lines += textwrap.wrap(verdict.detail + see, 100, initial_indent=" " * 9,
                               subsequent_indent=" " * 9)  # fmt: skip
    return lines


def _counts(what: str, verdicts: Sequence[Verdict]) -> str:
    outcomes = [verdict.outcome for verdict in verdicts]
    counts = ", ".join(f"{outcomes.count(o)} {o}" for o in ("ok", "broken", "skipped"))
    return f"{len(verdicts)} {what}: {counts}"


def _short(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 400 else text[:400] + " ..."
