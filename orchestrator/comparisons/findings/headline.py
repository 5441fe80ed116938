"""What a comparison comes to, in sentences: who is better in which role, and who has learned.

A sentence claims a difference only where its interval over seeds leaves out 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from muxrl.orchestrator.comparisons.findings.head_to_head import HeadToHead
from muxrl.orchestrator.comparisons.findings.learned import Learner
from muxrl.orchestrator.comparisons.findings.role_by_role import Pairing, RoleResult
from muxrl.orchestrator.measure.number_text import interval, interval_lines, signed_interval
from muxrl.orchestrator.measure.statistics import Estimate
from muxrl.protocol.suggestions import listed

_MAX_PAIRS = 6  # of four labels; of more, each is told against the best
_MAX_LISTED = 6


def headline(
    compared: Sequence[RoleResult], learners: Sequence[Learner], played: HeadToHead | None
) -> list[str]:
    """Returns the sentences, most important first."""
    return [
        *(_role_sentence(result) for result in compared),
        *_learning_sentences(learners),
        *_meeting_sentences(played),
    ]


def _role_sentence(result: RoleResult) -> str:
    among = ", among the same others" if any(result.contexts) else ""
    clear, unclear = [], []
    for pairing in _told_pairings(result):
        difference = pairing.difference
        names = f"{pairing.first} and {pairing.second}"
        if difference is None:
            unclear.append(f"{names} have no seed in common")
        elif math.isnan(difference.low):
            unclear.append(f"{names} differ by {interval(difference)}, with no interval")
        elif difference.low > 0:
            clear.append(f"{pairing.first} over {pairing.second} by {interval(difference)}")
        else:
            unclear.append(f"{names} cannot be told apart ({signed_interval(difference)})")
    over = " [95 % over seeds]" if clear or any("[" in one for one in unclear) else ""
    return f"As {result.subject.name}{among}{over}: {'; '.join([*clear, *unclear])}."


def _told_pairings(result: RoleResult) -> Iterator[Pairing]:
    """Yields each two labels once, the better one first; of many labels, only those of the best."""
    by_score = sorted(result.standings, key=lambda standing: -standing.score.mean)
    rank = {standing.label: place for place, standing in enumerate(by_score)}
    is_few = len(result.unordered_pairings) <= _MAX_PAIRS
    for pairing in sorted(result.pairings, key=lambda p: (rank[p.first], rank[p.second])):
        difference = pairing.difference
        # By the sign of the difference, which need not be that of the interquartile means.
        is_first = (
            difference.mean > 0
            if difference is not None and difference.mean
            else rank[pairing.first] < rank[pairing.second]
        )
        if is_first and (is_few or 0 in (rank[pairing.first], rank[pairing.second])):
            yield pairing


def _learning_sentences(every: Sequence[Learner]) -> Iterator[str]:
    learners = [learner for learner in every if learner.num_runs]
    if learners:
        yield from _measured_sentences(learners)
    unmeasured = list(dict.fromkeys(learner.role for learner in every if not learner.num_runs))
    if unmeasured:
        yield (
            f"Whether {listed(unmeasured, _MAX_LISTED)} learned is not known"
            f"{' everywhere' if set(unmeasured) & {x.role for x in learners} else ''}: random "
            "agents in the same place were not measured."
        )


def _measured_sentences(learners: Sequence[Learner]) -> Iterator[str]:
    shown = [learner for learner in learners if learner.is_shown]
    below = [learner for learner in learners if learner.is_below]
    seeds = " or ".join(map(str, sorted({learner.num_runs for learner in learners})))
    seeds = f"With {seeds} {'seed' if seeds == '1' else 'seeds'}"
    place = "random agents in the same place"
    if len(learners) == 1:
        verb = "is shown" if shown else "is not shown"
        yield f"{seeds}, {_told(learners[0])} {verb} to have learned, against {place}."
        return
    many = f"{len(learners)} learners (a role in an assignment)"
    if not shown:
        yield (
            f"{seeds} nobody is shown to have learned: of {many}, none has an interval against "
            f"{place} that is above 0."
        )
    elif len(shown) == len(learners):
        yield f"{seeds} all {many} are shown to have learned, against {place}."
    else:
        yield (
            f"{seeds}, {len(shown)} of {many} {'is' if len(shown) == 1 else 'are'} shown to have "
            f"learned, against {place}: {listed(map(_told, shown), _MAX_LISTED)}."
        )
    if below:
        verb = "ends" if len(below) == 1 else "end"
        yield (
            f"{len(below)} of {len(learners)} {verb} below {place}: "
            f"{listed(map(_told, below), _MAX_LISTED)}."
        )


def _told(learner: Learner) -> str:
    beside = f" beside {learner.others}" if learner.others else ""
    return f"{learner.label} as {learner.role}{beside} ({signed_interval(learner.advantage)})"


def _meeting_sentences(played: HeadToHead | None) -> Iterator[str]:
    for table in played.by_label if played else ():
        known = {p: merit for p, merit in table.merits.items() if math.isfinite(merit.mean)}
        if known:
            best = max(known, key=lambda player: known[player].mean)
            text = f"{signed_interval(known[best])} over pairs of seeds"
            yield f"Head to head as {table.role}, " + (
                f"{best} has the highest merit, {text}."
                if known[best].low > 0
                else f"nobody's merit is shown to be above 0; {best}'s is {text}."
            )
        for label, curve in played.rating_curves(table).items() if played else ():
            (first, begin), (last, end) = curve[0], curve[-1]
            yield (
                f"As {table.role}, {label} is rated {_points(begin)} after {first:,} env steps, "
                f"{_points(end)} after {last:,}; random actions are 0."
            )


def _points(rating: Estimate) -> str:
    return " ".join(interval_lines(rating, digits=0))
