"""What a comparison comes to, in sentences: who is better in which role, and who has learned.

A sentence claims a difference only where its interval over seeds leaves out 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from muxrl.orchestrator.comparisons.findings.frames import Frames
from muxrl.orchestrator.comparisons.findings.head_to_head import HeadToHead
from muxrl.orchestrator.comparisons.findings.role_by_role import BELOW, LEARNED
from muxrl.orchestrator.measure.number_text import interval
from muxrl.orchestrator.measure.statistics import Unit
from muxrl.protocol.suggestions import listed

if TYPE_CHECKING:
    from pandas import DataFrame

_MAX_PAIRS = 6  # of four labels; of more, each is told against the best
_MAX_LISTED = 6


def headline(frames: Frames, played: HeadToHead | None) -> list[str]:
    """Returns the sentences, most important first."""
    roles, pairings = frames["roles"], frames["pairings"]
    return [
        *(
            _role_sentence(role, labels, pairings[pairings.role == role].to_dict("records"))
            for role, labels in roles.groupby("role", sort=False)
        ),
        *_learning_sentences(frames["learners"]),
        *_meeting_sentences(played),
    ]


def _role_sentence(role: str, labels: DataFrame, pairings: list[dict[str, Any]]) -> str:
    among = ", among the same others" if any(labels.among.iloc[0]) else ""
    clear, unclear = [], []
    for pairing in _shown_pairings(labels, pairings):
        first, second, difference = (pairing[name] for name in ("first", "second", "difference"))
        names = f"{first} and {second}"
        if difference is None:
            unclear.append(f"{names} have no seed in common")
        elif math.isnan(difference.low):
            written = interval(difference, Unit.SEEDS)
            unclear.append(f"{names} differ by {written}, with no interval")
        elif difference.low > 0:
            clear.append(f"{first} over {second} by {interval(difference, Unit.SEEDS)}")
        else:
            written = interval(difference, Unit.SEEDS, "+")
            unclear.append(f"{names} cannot be told apart ({written})")
    return f"As {role}{among}: {'; '.join([*clear, *unclear])}."


def _shown_pairings(labels: DataFrame, pairings: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields each two labels once, the better one first; of many labels, only those of the best."""
    by_score = sorted(zip(labels.label, labels.iqm, strict=True), key=lambda one: -one[1].mean)
    rank = {label: place for place, (label, _) in enumerate(by_score)}
    is_few = len(pairings) <= 2 * _MAX_PAIRS
    for pairing in sorted(pairings, key=lambda p: (rank[p["first"]], rank[p["second"]])):
        difference, places = (
            pairing["difference"],
            (rank[pairing["first"]], rank[pairing["second"]]),
        )
        # By the sign of the difference, which need not be that of the interquartile means.
        is_first = (
            difference.mean > 0
            if difference is not None and difference.mean
            else places[0] < places[1]
        )
        if is_first and (is_few or 0 in places):
            yield pairing


def _learning_sentences(every: DataFrame) -> Iterator[str]:
    learners = every[every.num_runs > 0]
    if len(learners):
        yield from _measured_sentences(learners)
    unmeasured = list(dict.fromkeys(every[every.num_runs == 0].role))
    if unmeasured:
        yield (
            f"Whether {listed(unmeasured, _MAX_LISTED)} learned is not known"
            f"{' everywhere' if set(unmeasured) & {*learners.role} else ''}: random "
            "agents in the same place were not measured."
        )


def _measured_sentences(learners: DataFrame) -> Iterator[str]:
    written = [_sentence_of(learner) for learner in learners.itertuples()]
    shown, below = (
        [text for text, is_one in zip(written, learners.verdict == verdict, strict=True) if is_one]
        for verdict in (LEARNED, BELOW)
    )
    seeds = " or ".join(map(str, sorted({*learners.num_runs})))
    seeds = f"With {seeds} {'seed' if seeds == '1' else 'seeds'}"
    place = "random agents in the same place"
    if len(learners) == 1:
        verb = "is shown" if shown else "is not shown"
        yield f"{seeds}, {written[0]} {verb} to have learned, against {place}."
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
            f"learned, against {place}: {listed(shown, _MAX_LISTED)}."
        )
    if below:
        verb = "ends" if len(below) == 1 else "end"
        yield (
            f"{len(below)} of {len(learners)} {verb} below {place}: {listed(below, _MAX_LISTED)}."
        )


def _sentence_of(learner: Any) -> str:
    with_others = f" beside {learner.others}" if learner.others else ""
    advantage = interval(learner.advantage, Unit.SEEDS, "+")
    return f"{learner.label} as {learner.role}{with_others} ({advantage})"


def _meeting_sentences(played: HeadToHead | None) -> Iterator[str]:
    if played is None:
        return
    for table in played.by_label:
        known = {p: merit for p, merit in table.merits.items() if math.isfinite(merit.mean)}
        if known:
            best = max(known, key=lambda player: known[player].mean)
            text = interval(known[best], Unit.PAIRS, "+")
            yield f"Head to head as {table.role}, " + (
                f"{best} has the highest merit, {text}."
                if known[best].low > 0
                else f"nobody's merit is shown to be above 0; {best}'s is {text}."
            )
        for label, curve in played.rating_curves(table).items():
            (first, begin), (last, end) = (
                (env_steps, interval(rating, played.rating_unit, digits=0))
                for env_steps, rating in (curve[0], curve[-1])
            )
            yield (
                f"As {table.role}, {label} is rated {begin} after {first:,} env steps, {end} after "
                f"{last:,}; random actions are 0."
            )
