"""What a rule for servers is."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from muxrl.orchestrator.compliance.subject import Check


class Rule(NamedTuple):
    """One rule. `where`: its place on the page. `has_items`: tried over both transports.
    `is_needed`: muxrl's own clients and runs need it; the others harden a server against mistakes,
    strangers and load, or are for clients of other languages."""

    where: str
    text: str
    check: Check
    has_items: bool
    is_needed: bool


class Rules(list[Rule]):
    """Rules in the order in which they are tried.

    Args:
        has_items: of those that do not say it themselves.
    """

    def __init__(self, *, has_items: bool = True) -> None:
        super().__init__()
        self._has_items = has_items

    def of(
        self, where: str, *, has_items: bool | None = None, is_needed: bool = False
    ) -> Callable[[Check], Check]:
        """Returns what adds a function as a rule, whose text is its docstring.

        The function gets the server, raises `Broken` or `Skipped`, and need not tidy up.
        """
        tries_both = self._has_items if has_items is None else has_items

        def add(check: Check) -> Check:
            text = " ".join((check.__doc__ or "").split())
            self.append(Rule(where, text, check, tries_both, is_needed))
            return check

        return add
