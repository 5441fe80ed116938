"""Metrics in the Grafana page and in the docs' table are those of a server's ``GET /metrics``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families
from tests.compliance.real_servers import SEES, make_plan, running
from tests.docs.test_documents import DOCS, table

from muxrl.orchestrator.config.trackers import TRACKERS

METRIC = re.compile(r"(muxrl_\w+)(?:\{([^}]*)\})?")
ROW = re.compile(r"^\| (`[a-z].*?`) \|", re.MULTILINE)


@dataclass
class Given:
    """A server's metric: its kind and labels."""

    kind: str
    labels: set[str] = field(default_factory=set)


@pytest.fixture(scope="module")
def given() -> Iterator[dict[str, Given]]:
    """Gives the metrics by name of a server that was called, has refused something and warned."""
    with running(make_plan("RANDOM", SEES)) as server:
        server.policies.store.warnings.add("far rewards", "one is 1e9")
        url = f"http://{server.address}"
        episode = {"episode_id": "e"}
        assert requests.post(f"{url}/v1/episodes", json=episode).ok
        assert requests.post(f"{url}/v1/episodes/never/end", json={"t": 1}).status_code == 410
        found: dict[str, Given] = {}
        for family in text_string_to_metric_families(requests.get(f"{url}/metrics").text):
            if family.type == "counter":
                found[f"{family.name}_total"] = Given(family.type)
            elif family.type != "histogram":
                found[family.name] = Given(family.type)
            for sample in family.samples:
                found.setdefault(sample.name, Given(family.type)).labels |= sample.labels.keys()
        yield found


def queries() -> Iterator[tuple[str, str]]:
    """Yields each query of the Grafana page, and the text of its legend."""
    for panel in json.loads((DOCS / "grafana.json").read_text())["panels"]:
        for target in panel["targets"]:
            yield target["expr"], target["legendFormat"]


def test_grafana_queries_only_metrics_that_a_server_has(given: dict[str, Given]) -> None:
    asked = set()
    for query, legend in queries():
        assert query.count("(") == query.count(")")
        names = METRIC.findall(query)
        assert names, f"{query} asks for nothing"
        for name, matchers in names:
            assert name in given, f"{query}: no server gives {name}"
            asked.add(name)
            labels = set(re.findall(r"(\w+)=", matchers))
            if " by (" not in query:
                labels |= set(re.findall(r"{{(\w+)}}", legend))
            # Metrics that are unknown here (a lag, a return) have no sample.
            assert labels <= (given[name].labels or {"server"}), query
            is_rate = f"rate({name}" in query
            is_counted = given[name].kind != "gauge" and name != "muxrl_restarts_total"
            assert is_rate == is_counted, f"{query}: {name} is a {given[name].kind}"
            if name.endswith("_bucket"):
                assert "sum by (le, server)" in query
    missing = given.keys() - asked - {f"muxrl_{n}_seconds_sum" for n in ("exchange", "forward")}
    assert not missing, "Grafana leaves out what a server gives"


def test_the_table_names_all_metrics_of_a_server(given: dict[str, Given]) -> None:
    text = (DOCS / "monitoring.md").read_text().partition("## Prometheus")[2].partition("\n## ")[0]
    named = {}
    for names in ROW.findall(text):
        for name, labels in re.findall(r"`(\w+)(?:\{(\w+)\})?`", names):
            named[f"muxrl_{name}"] = {"server", labels} - {""}
    shown = {
        re.sub(r"_(sum|count)$", "", name.removesuffix("_bucket"))
        if of.kind == "histogram"
        else name: of.labels - {"le"}
        for name, of in given.items()
    }
    assert named.keys() == shown.keys()
    for name, labels in named.items():
        assert not shown[name] or labels == shown[name], name


def test_every_tracker_has_a_row_with_the_command_that_installs_it() -> None:
    rows = [row for row in table(DOCS / "monitoring.md", "Trackers") if len(row) == 3]
    shown = {row[0]: row[1] for row in rows[:-1]}
    assert shown == {f"`{n}`": f"`pip install 'muxrl[{t.extra}]'`" for n, t in TRACKERS.items()}
    assert rows[-1][:2] == ["`package.module:name`", "you"]
