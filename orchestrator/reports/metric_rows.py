"""The rows of a report's table of metrics, as text."""

from __future__ import annotations

from collections.abc import Iterator

from muxrl.orchestrator.measure.metric_results import MetricResult
from muxrl.orchestrator.measure.number_text import MISSING, interval, number
from muxrl.orchestrator.measure.results import Report

METRIC_HEADINGS = ("metric", "of", "train", "evaluated [95 %]", "random in place")
METRIC_CAPTION = (
    "Of an episode, or the mean over the server's agents. Random in place: evaluated with that "
    "server's agents random."
)


def metric_rows(report: Report) -> Iterator[list[str]]:
    """Yields a row for each metric and whose it is, under `METRIC_HEADINGS`."""
    for metric in report.metrics:
        yield [
            metric.name,
            metric.server_id or "episode",
            number(metric.train),
            evaluated(metric),
            at_random(metric),
        ]


def evaluated(metric: MetricResult) -> str:
    """Returns its mean and interval with all agents as learned."""
    return interval(metric.evaluated) if metric.evaluated else MISSING


def at_random(metric: MetricResult) -> str:
    """Returns its mean with a server's agents at random; of an episode's, for each server."""
    if not metric.random:
        return MISSING
    if metric.server_id is not None:
        return number(metric.random[metric.server_id].mean)
    return ", ".join(f"{number(value.mean)} ({s})" for s, value in metric.random.items())
