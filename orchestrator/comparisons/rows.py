"""The tables of a comparison as rows of plain values, runs by their path: for files and pandas."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from muxrl.orchestrator.comparisons.comparison import Comparison
from muxrl.orchestrator.reports.statistics import Estimate

Row = Mapping[str, Any]


def run_rows(comparison: Comparison) -> Iterator[Row]:
    """One for each run and subject."""
    of = {r.path: r.recorded.assignment for c in comparison.contestants for r in c.runs}
    for standing in comparison.standings:
        for run in standing.runs:
            yield {
                "contestant": run.contestant,
                "assignment": of[run.run],
                "seed": run.seed,
                "subject": run.subject,
                "return": run.score,
                "num_episodes": run.num_episodes,
                "env_steps": run.env_steps,
                "time_s": run.time_s,
                "area_under_curve": run.area,
                "env_steps_to_threshold": run.env_steps_to_threshold,
                "time_s_to_threshold": run.time_s_to_threshold,
                "random_in_place": run.random_in_place,
                "run": run.run,
            }


def curve_rows(comparison: Comparison) -> Iterator[Row]:
    """One for each evaluation of each run and subject."""
    for standing in comparison.standings:
        for run in standing.runs:
            curve = run.curve
            for env_steps, time_s, value in zip(
                curve.env_steps.tolist(),
                curve.time_s.tolist(),
                curve.returns.tolist(),
                strict=True,
            ):
                yield {
                    "contestant": run.contestant,
                    "seed": run.seed,
                    "subject": run.subject,
                    "env_steps": int(env_steps),
                    "time_s": time_s,
                    "return": value,
                }


def standing_rows(comparison: Comparison) -> Iterator[Row]:
    """One for each contestant and subject."""
    for standing in comparison.standings:
        yield {
            "contestant": standing.contestant,
            "subject": standing.subject,
            "num_runs": len(standing.runs),
            **_estimate("iqm", standing.score),
            **_estimate("mean", standing.mean),
            **_estimate("area", standing.area),
            "threshold": comparison.thresholds.get(standing.subject),
            "num_reached": standing.num_reached,
            "env_steps_to_threshold": standing.env_steps_to_threshold,
            "time_s_to_threshold": standing.time_s_to_threshold,
        }
    for baseline in comparison.baselines:
        for subject, estimate in baseline.returns.items():
            yield {
                **dict.fromkeys(TABLES["standings"][0]),
                "contestant": f"baseline: {baseline.name}",
                "subject": subject,
                "num_runs": 0,
                **_estimate("mean", estimate),
            }


def role_rows(comparison: Comparison) -> Iterator[Row]:
    """One for each label of each role."""
    for result in comparison.roles_compared:
        for standing in result.standings:
            yield {
                "role": result.subject.name,
                "label": standing.label,
                "num_runs": standing.num_runs,
                "num_contexts": len(result.contexts),
                **_estimate("iqm", standing.score),
                "random_in_place": standing.random_in_place,
            }


def pairing_rows(comparison: Comparison) -> Iterator[Row]:
    """One for each ordered pair of labels of each role."""
    for result in comparison.roles_compared:
        for pairing in result.pairings:
            yield {
                "role": result.subject.name,
                "first": pairing.first,
                "second": pairing.second,
                **_estimate("improvement", pairing.improvement),
                **_estimate("difference", pairing.difference),
                "num_pairs": pairing.num_pairs,
            }


def match_rows(comparison: Comparison) -> Iterator[Row]:
    """One for each match of the head to head."""
    for match in comparison.head_to_head.matches if comparison.head_to_head else ():
        yield {
            "role": match.role,
            "player": match.player,
            "player_contestant": match.player_lineup,
            "others": match.others,
            "others_contestant": match.others_lineup,
            "pair": match.pair,
            "return": match.score,
            "num_episodes": match.num_episodes,
            "trained_together": match.are_partners,
            "run": match.run,
            "other_run": match.other_run,
        }


def _estimate(name: str, estimate: Estimate | None) -> Row:
    parts = (None, None, None) if estimate is None else (estimate.mean, estimate.low, estimate.high)
    return dict(zip((name, f"{name}_low", f"{name}_high"), parts, strict=True))


def _interval(name: str) -> tuple[str, str, str]:
    return name, f"{name}_low", f"{name}_high"


TABLES: dict[str, tuple[tuple[str, ...], Callable[[Comparison], Iterator[Row]]]] = {
    "runs": (
        (
            "contestant",
            "assignment",
            "seed",
            "subject",
            "return",
            "num_episodes",
            "env_steps",
            "time_s",
            "area_under_curve",
            "env_steps_to_threshold",
            "time_s_to_threshold",
            "random_in_place",
            "run",
        ),
        run_rows,
    ),
    "curves": (("contestant", "seed", "subject", "env_steps", "time_s", "return"), curve_rows),
    "standings": (
        (
            "contestant",
            "subject",
            "num_runs",
            *_interval("iqm"),
            *_interval("mean"),
            *_interval("area"),
            "threshold",
            "num_reached",
            "env_steps_to_threshold",
            "time_s_to_threshold",
        ),
        standing_rows,
    ),
    "roles": (
        ("role", "label", "num_runs", "num_contexts", *_interval("iqm"), "random_in_place"),
        role_rows,
    ),
    "pairings": (
        (
            "role",
            "first",
            "second",
            *_interval("improvement"),
            *_interval("difference"),
            "num_pairs",
        ),
        pairing_rows,
    ),
    "matches": (
        (
            "role",
            "player",
            "player_contestant",
            "others",
            "others_contestant",
            "pair",
            "return",
            "num_episodes",
            "trained_together",
            "run",
            "other_run",
        ),
        match_rows,
    ),
}
"""By name: the columns, and what gives the rows."""
