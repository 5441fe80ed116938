"""Chooses which cases of a table run by day: one for each promise; all of them run at night."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def at_night(cases: Iterable[Any], left_out: Collection[Any]) -> list[Any]:
    """Marks the cases as `night` that are left out by day.

    Raises:
        ValueError: one of them is not among the cases.
    """
    cases = list(cases)
    if unknown := [case for case in left_out if case not in cases]:
        raise ValueError(f"no such cases: {unknown}")
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else [case]),
            marks=[pytest.mark.night] if case in left_out else [],
        )
        for case in cases
    ]
