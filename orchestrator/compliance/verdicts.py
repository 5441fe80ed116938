"""What became of each rule, and the table that says so."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Literal, NamedTuple


class Broken(Exception):
    """A rule is broken.

    Args:
        expected: what the rule wants.
        came: what was heard instead.
    """

    def __init__(self, expected: str, came: object) -> None:
        self.expected = expected
        self.came = _short(came)
        super().__init__(f"expected {self.expected}; came {self.came}")


class Skipped(Exception):
    """A rule cannot be tried here; the text says why."""


class Verdict(NamedTuple):
    """What became of a rule. `where`: its place on the page. `story`: why it is not ok, or ""."""

    where: str
    rule: str
    outcome: Literal["ok", "broken", "skipped"]
    story: str = ""


def expect(condition: object, expected: str, came: object) -> None:
    """Raises `Broken` unless the condition holds."""
    if not condition:
        raise Broken(expected, came)


def table(verdicts: Sequence[Verdict]) -> str:
    """Returns a line for each rule, the stories below theirs, and the counts in the end."""
    width = max(len(verdict.where) for verdict in verdicts)
    lines = []
    for verdict in verdicts:
        lines.append(f"{verdict.outcome:7}  {verdict.where:{width}}  {verdict.rule}")
        lines += textwrap.wrap(verdict.story, 100, initial_indent=" " * 9,
                               subsequent_indent=" " * 9)  # fmt: skip
    outcomes = [verdict.outcome for verdict in verdicts]
    counts = ", ".join(f"{outcomes.count(o)} {o}" for o in ("ok", "broken", "skipped"))
    return "\n".join([*lines, "", f"{len(verdicts)} rules: {counts}"])


def _short(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 400 else text[:400] + " ..."
