"""``--explore`` and ``--greedy``: how stochastic policies act while they are evaluated."""

from __future__ import annotations

import argparse


def add_acting_rule(parser: argparse.ArgumentParser, *, explore: str, greedy: str) -> None:
    """Adds the two flags as ``should_explore``: True, False, or None for the runs' own rule.

    Args:
        explore: help for the first.
        greedy: help for the second.
    """
    rule = parser.add_mutually_exclusive_group()
    for flag, value, text in (("--explore", True, explore), ("--greedy", False, greedy)):
        rule.add_argument(flag, dest="should_explore", action="store_const", const=value, help=text)
