"""Writes what a server counts in the text format of Prometheus (``GET /metrics``).

https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from muxrl.servers.network.latency import BOUNDS_S, Latencies

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


@dataclass(frozen=True)
class Family:
    """All samples with one name.

    Attributes:
        kind: a counter never falls while its process lives; its name ends in ``_total``. A
            histogram's samples are numbers of durations up to a bound, which is the label ``le``.
        name: without ``muxrl_``.
        about: a line that explains it, with its unit.
        samples: by the values of the labels, in the order of `labels`; () without labels.
        labels: names of the labels.
        sum_s: for a histogram, the sum of all durations.
    """

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    about: str
    samples: Mapping[tuple[str, ...], float]
    labels: tuple[str, ...] = ()
    sum_s: float = 0.0


def counter(name: str, about: str, value: float) -> Family:
    """Returns a counter without labels."""
    return Family("counter", name, about, {(): value})


def gauge(name: str, about: str, value: float | None) -> Family:
    """Returns a gauge without labels; None: its value is unknown, so it is left out."""
    return Family("gauge", name, about, {} if value is None else {(): value})


def histogram(name: str, about: str, latencies: Latencies) -> Family:
    """Returns a histogram; its name ends in ``_seconds``."""
    bounds = (*map(repr, BOUNDS_S), "+Inf")
    up_to = itertools.accumulate(latencies.counts)
    samples: dict[tuple[str, ...], float] = {
        (bound,): number for bound, number in zip(bounds, up_to, strict=True)
    }
    return Family("histogram", name, about, samples, ("le",), latencies.sum_s)


def exposition(families: Iterable[Family], server_id: str) -> str:
    """Returns the text of all families; every sample gets the label ``server``."""
    lines = []
    for family in families:
        name = f"muxrl_{family.name}"
        lines += [f"# HELP {name} {family.about}", f"# TYPE {name} {family.kind}"]
        for suffix, labels, number in _samples(family):
            named = {"server": server_id, **labels}
            text = ",".join(f'{key}="{value.translate(_ESCAPES)}"' for key, value in named.items())
            lines.append(f"{name}{suffix}{{{text}}} {float(number)!r}")
    return "\n".join(lines) + "\n"


def _samples(family: Family) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """Yields for each line the suffix of the family's name, the labels and the number."""
    is_histogram = family.kind == "histogram"
    number = 0.0
    for values, number in family.samples.items():
        labels = dict(zip(family.labels, values, strict=True))
        yield "_bucket" if is_histogram else "", labels, number
    if is_histogram:
        yield "_sum", {}, family.sum_s
        yield "_count", {}, number
