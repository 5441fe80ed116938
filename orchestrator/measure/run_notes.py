"""Writes the main results of a report as sentences, and notes on what limits its numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from muxrl.orchestrator.measure.against_random import AgainstRandom, Verdict
from muxrl.orchestrator.measure.judged import ServerResult
from muxrl.orchestrator.measure.number_text import interval, number
from muxrl.orchestrator.measure.sides import MAX_SIDES
from muxrl.orchestrator.records.evaluations import EvaluationPoint
from muxrl.orchestrator.records.recorded_run import RecordedRun, TrainingCurve
from muxrl.orchestrator.records.run_status import NOT_ENDED
from muxrl.orchestrator.storage.versions import version_notes
from muxrl.protocol.suggestions import listed

TOLERANCE = 0.05
"""Relative difference of budgets that does not count: clocks and open episodes cause such."""

_MAX_LISTED = 5
_BLOCKS = 10
_LEAST_RECORDS = 2 * _BLOCKS
_NOTICEABLE = 2.5
"""How many typical steps between blocks a curve must fall. Of curves of mere noise, one in sixty
falls so far; a curve that falls all at once falls by three steps."""
_CLAIMS = {
    Verdict.BETTER: "better than random agents in its place",
    Verdict.BETTER_THAN_BOTH: "better than random agents and than untrained ones in its place",
    Verdict.NOT_THAN_UNTRAINED: (
        "better than random agents in its place, but not than untrained ones"
    ),
    Verdict.NOT_ALL_UPDATED: (
        "better than random agents in its place, but some of its seeds made no update"
    ),
    Verdict.WORSE: "worse than random agents in its place",
    Verdict.UNCLEAR: "not distinguishable from random agents in its place",
}


def headline(servers: Sequence[ServerResult], num_seeds: int, over: str) -> Iterator[str]:
    """Yields sentences on what the evaluation of each server that learns shows.

    Args:
        servers: the servers of a report.
        num_seeds: the number of the report's seeds.
        over: what the report's intervals are over.
    """
    for server in servers:
        if not server.learns:
            continue
        who = f"{server.server_id} ({server.algorithm})"
        if (found := server.over_acting) is not None and found.advantage is not None:
            more = interval(found.advantage, over, "+")
            yield (
                f"{who} learned from the steps of {server.shadow}; in its place, after "
                f"{found.env_steps:,.0f} env steps, it returns {more}, compared with "
                f"{server.shadow}."
            )
        if not server.has_updates:
            yield f"{who} made no update, so there is nothing to judge."
        elif server.final is not None and server.plays_itself and not server.sides:
            yield (
                f"{who} plays against itself, and none of its sides was compared with random "
                "agents in its place."
            )
        else:
            for name, part in server.parts.items():
                yield _sentence(f"{name} ({server.algorithm})", part.final, num_seeds, over)


def _sentence(who: str, final: AgainstRandom | None, num_seeds: int, over: str) -> str:
    if final is None:
        return f"{who} was never evaluated."
    if final.advantage is None or final.verdict is None:
        learned = interval(final.learned, over)
        return f"{who} returns {learned}; random agents in its place were not measured."
    above = f", above 0 in {final.num_seeds_above} of {num_seeds} seeds" if num_seeds > 1 else ""
    advantage = interval(final.advantage, over, "+")
    return f"{who} is {_CLAIMS[final.verdict]}: {advantage}{above}."


class _Note(NamedTuple):
    """A note on how a run went.

    Attributes:
        text: the note, with ``{}`` for each entry of `numbers`.
        numbers: how often, or at which env steps, it happened.
        is_drawn: whether a report's picture has a vertical line there.
    """

    text: str
    numbers: tuple[Sequence[int], ...] = ()
    is_drawn: bool = False


def run_notes(runs: Sequence[RecordedRun], *, has_picture: bool = False) -> Iterator[str]:
    """Yields notes on how runs went, each a sentence without its full stop.

    A note that several runs have is yielded once, with the range of its numbers.

    Args:
        runs: the runs of a report, or of a comparison.
        has_picture: whether a picture with thin vertical lines goes with the notes.
    """
    yield from _grouped(runs, {run: list(_notes(run)) for run in runs}, has_picture=has_picture)


def extra_steps_notes(
    runs: Sequence[RecordedRun], at: Mapping[RecordedRun, EvaluationPoint]
) -> Iterator[str]:
    """Yields notes on runs that had trained for many more env steps than their evaluation says.

    Args:
        runs: the runs of a report, or of a comparison.
        at: by run: the evaluation that counts; runs without one are left out.
    """
    notes: dict[RecordedRun, list[_Note]] = {run: [] for run in runs}
    for run, point in at.items():
        if run.learns and point.env_steps_played > point.env_steps * (1 + TOLERANCE):
            text = (
                f"the policies that were evaluated after {point.env_steps:,} env steps had been "
                "trained on {}, since episodes that were open then were first played to their end"
            )
            notes[run].append(_Note(text, ([point.env_steps_played],)))
    yield from _grouped(runs, notes)


def pooled_note(runs: Sequence[RecordedRun]) -> str:
    """Returns a note if settings changed during pooled runs, but not in all alike; else ""."""
    changed = [run.changed_settings for run in runs]
    keys = dict.fromkeys(key for one in changed for key in one)
    if apart := [key for key in keys if len({one.get(key) for one in changed}) > 1]:
        return (
            "runs that count as seeds of one experiment did not all have the same "
            f"{listed(apart)} throughout"
        )
    return ""


def _grouped(
    runs: Sequence[RecordedRun],
    notes: Mapping[RecordedRun, Sequence[_Note]],
    *,
    has_picture: bool = False,
) -> Iterator[str]:
    found: dict[tuple[str, bool], dict[RecordedRun, tuple[Sequence[int], ...]]] = {}
    for run, of_run in notes.items():
        for note in of_run:
            found.setdefault((note.text, note.is_drawn), {})[run] = note.numbers
    for (text, is_drawn), numbers in found.items():
        names = listed([run.name for run in numbers], _MAX_LISTED)
        who = (
            f"{len(numbers)} of {len(runs)} runs ({names})" if len(numbers) > 1 else f"run {names}"
        )
        if any(numbers.values()):
            text = text.format(*map(_range, zip(*numbers.values(), strict=True)))
        yield f"{who}: {text}{' (thin vertical line)' if has_picture and is_drawn else ''}"


def _range(of_runs: Sequence[Sequence[int]]) -> str:
    """Returns the numbers if all runs have the same ones, else their range."""
    every = [n for one in of_runs for n in one]
    if len({tuple(one) for one in of_runs}) == 1:
        return ", ".join(f"{n:,}" for n in of_runs[0])
    return f"{min(every):,} to {max(every):,}"


def _notes(run: RecordedRun) -> Iterator[_Note]:
    if run.resumed_at:
        yield _Note("resumed at {} env steps", (run.resumed_at,), is_drawn=True)
    for key, value in run.changed_settings.items():
        yield _Note(f"{key} was {value}")
    for name, at in run.restarted_at.items():
        text = f"{name} was lost and started again {{}}×, at {{}} env steps"
        yield _Note(text, ([len(at)], at), is_drawn=True)
    if run.num_lost_episodes:
        yield _Note(
            "{} training episodes were cut short since a process was lost; servers that were not "
            "lost keep the steps of these episodes, and treat them as truncated",
            ([run.num_lost_episodes],),
        )
    if run.num_bad_episodes:
        yield _Note(
            "{} training episodes ended at a value that a server refused "
            "(simulation.on_bad_value); the simulations' logs name each of these values",
            ([run.num_bad_episodes],),
        )
    for name, num in run.num_random_episodes.items():
        yield _Note(
            f"agents of {name} acted at random in {{}} training episodes, while {name} was lost; "
            "the other servers learned from these episodes, but no training curve shows their "
            "returns",
            ([num],),
        )
    for name, num in run.num_logged_actions.items():
        measured = "train return measures" if run.servers[name].learns else "returns measure"
        yield _Note(
            f"simulations chose {{}} actions for the agents of {name} themselves (logged_actions): "
            f"its {measured} whatever chose these actions, which may learn, and not the server's "
            "algorithm alone",
            ([num],),
        )
    for name, planned in run.servers.items():
        if planned.learns and run.is_played_by_others(name):
            yield _Note(
                f"simulations chose actions for the agents of {name} in the last evaluation, too, "
                "so it measures neither learned nor random actions; in episodes for which the "
                "client's is_evaluation is true, play the actions that the servers answer"
            )
    for name, planned in run.servers.items():
        if planned.learns and run.weights_seq_no.get(name) == 0:
            why = "its first batch needs more env steps"
            was_played = any(run.env_steps.values())  # False if the run failed before its first row
            if was_played and run.env_steps[name] == 0:
                why = "none of its agents acted in a training episode"
                if name in run.restarted_at:
                    why = "it was lost and started again without one"
            yield _Note(
                f"{name} made no update: its policies are those that it began with, since {why}"
            )
    status = run.status
    if status is None or (status.state == "done" and not status.cause):
        return
    if status.state == "done":
        yield _Note(status.cause)
    else:
        ended = f"ended as {status.state}: {status.cause}"
        yield _Note(ended if status.has_ended else NOT_ENDED)


def notes_of(runs: Sequence[RecordedRun], servers: Sequence[ServerResult]) -> Iterator[str]:
    """Yields the notes of a report, each a sentence without its full stop."""
    yield from run_notes(runs, has_picture=True)
    yield from filter(None, [pooled_note(runs)])
    yield from extra_steps_notes(runs, {run: run.points[-1] for run in runs if run.points})
    for run in runs:
        for name, found in run.status.warnings.items() if run.status else ():
            whose = f"the log of {name} warns of " if name else ""
            for one in found:
                if not one.text:  # a warning of the run itself
                    yield f"a warning of run {run.name}: {one.what}"
                    continue
                yield (
                    f"in run {run.name}, {whose}{one.what} {one.num:,}×, first at "
                    f"{one.env_steps:,} env steps: {one.text}"
                )
        is_done = run.status is not None and run.status.state == "done"  # else a note has its cause
        has_ended = run.points or any(len(curve.returns) for curve in run.training.values())
        if is_done and not has_ended:
            yield (
                f"run {run.name}: no episode ended, so there are no returns and no metrics; "
                "either an episode is longer than the run, or the simulation never ends one"
            )
        elif absent := [m for m in run.metrics if m not in run.metric_names]:
            yield (
                f"run {run.name}: no episode had a metric {', '.join(map(repr, absent))}, which "
                "simulation.metrics names; is this key in the simulation's infos?"
            )
    finals = [server.final for server in servers if server.final is not None]
    if not finals:
        unevaluated = [run.name for run in runs if not run.points]
        if any(run.points for run in runs):
            yield (
                f"runs without an evaluation: {', '.join(unevaluated)}; so there are no returns "
                "over all seeds"
            )
        else:
            yield "no evaluation was recorded; training returns include exploration"
    without = [
        s.server_id for s in servers if s.learns and s.final is not None and s.final.random is None
    ]
    if without:
        yield f"servers never compared with random agents in their place: {', '.join(without)}"
    for server in servers:
        yield from _judging_notes(server)
    if any(final.env_steps == 0 for final in finals) and any(s.learns for s in servers):
        yield "the last evaluation is the one before training: it shows untrained policies"
    for server in servers:
        if server.learns and (fall := find_fall(server.curve, server.final, server.training)):
            yield (
                f"{server.server_id} returns less than when it began: {fall}; other servers may "
                "have learned to beat it, or a schedule of its settings does not fit the run"
            )
    last = [run.points[-1].env_steps for run in runs if run.points]
    if len(runs) > 1 and last and min(last) < max(last):
        yield (
            f"the runs were last evaluated after different numbers of env steps, {min(last):,} to "
            f"{max(last):,}; the final numbers mix these evaluations"
        )
    yield from version_notes([run.versions for run in runs])
    if len(runs) > len({run.seed for run in runs}):
        yield "two of the runs have the same seed, so they are not independent"


def _judging_notes(server: ServerResult) -> Iterator[str]:
    if not (server.learns and server.has_updates):
        return
    who = server.server_id
    if server.plays_itself:
        reason = f"{who} plays against itself, so the mean over its agents says nothing"
        if server.sides:
            yield f"{reason}: each side was replaced alone, with all other agents as learned"
        else:
            yield (
                f"{reason}, and its sides were not replaced one at a time: only the final "
                f"evaluation does this, and only for up to {MAX_SIDES} sides"
            )
    for name, one in server.parts.items():
        is_judged = one is not server or not server.plays_itself
        if is_judged and one.verdict is Verdict.NOT_THAN_UNTRAINED:
            yield (
                f"{name} is better than random, but not than untrained: the reason may be how it "
                "acts (greedily, or by one rule all the time), not what it learned"
            )


def find_fall(
    curve: Sequence[AgainstRandom], last: AgainstRandom | None, training: Sequence[TrainingCurve]
) -> str:
    """Returns from where to where a server's return fell, in words; "" if it did not fall.

    With at least two evaluations, it fell if the interval of the last is below that of the first.
    Otherwise the train returns decide: in each seed, the last tenth must be far below the first.

    Args:
        curve: the server's evaluations, in order of env steps.
        last: its final evaluation.
        training: for each seed: returns during training.
    """
    if curve and last is not None and last.env_steps > curve[0].env_steps:
        first = curve[0]
        if not last.learned.high < first.learned.low:
            return ""
        return (
            f"evaluated at {interval(last.learned, last.unit)} after {last.env_steps:,.0f} env "
            f"steps, but at {interval(first.learned, first.unit)} after {first.env_steps:,.0f}"
        )
    ends = [_fall(one) for one in training]
    fallen = [both for both in ends if both is not None]
    if not fallen or len(fallen) < len(ends):
        return ""
    before, after = np.mean(fallen, axis=0)
    return (
        f"train return {number(float(after))} in the last tenth of its iterations, "
        f"{number(float(before))} in the first"
    )


def _fall(curve: TrainingCurve) -> tuple[float, float] | None:
    """Returns the means of the first and the last tenth, if the last is noticeably lower.

    Neighbouring records are means over partly the same episodes, so their deviation says little
    about how far a curve wanders; the steps between the means of tenths do.
    """
    if len(curve.returns) < _LEAST_RECORDS:
        return None
    means = [float(block.mean()) for block in np.array_split(curve.returns, _BLOCKS)]
    step = float(np.sqrt(np.mean([(b - a) ** 2 for a, b in pairwise(means)])))
    is_fallen = means[0] - means[-1] > _NOTICEABLE * step > 0
    return (means[0], means[-1]) if is_fallen else None
