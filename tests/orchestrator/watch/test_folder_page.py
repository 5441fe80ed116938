"""The page of a folder shows all its runs and sweeps, and filters them."""

from __future__ import annotations

import json
from datetime import datetime

from tests.orchestrator.manage.filled import fill
from tests.orchestrator.watch.browser import Browser
from tests.orchestrator.watch.conftest import Site

from muxrl.orchestrator.records.run_directory import RunDirectory


def shown(tab: Browser) -> list[str]:
    names = "[...document.querySelectorAll('[data-entry]')].map((row) => row.dataset.entry)"
    return [name.split("/")[-1].split("-")[0] for name in tab.evaluate(names)]


def choose(tab: Browser, name: str, value: str) -> None:
    tab.evaluate(f"""(() => {{ const field = document.querySelector('[data-filter={name}]');
        field.value = {json.dumps(value)};
        field.dispatchEvent(new Event(field.tagName === 'SELECT' ? 'change' : 'input')); }})()""")


def test_runs_are_filtered_and_lead_to_their_pages(tab: Browser, site: Site) -> None:
    fill(site.root)
    tab.open(site.address)
    tab.wait("document.querySelector('[data-entry]')")
    assert shown(tab) == ["killed", "tag", "tuned", "foreign"]
    row = "document.querySelector('[data-entry^=\"runs/\"]')"
    cells = tab.evaluate(f"[...{row}.querySelectorAll('td')].map((cell) => cell.innerText)")
    assert cells[:3] == ["done", "wolves (QMIX): wolf_0–1 | sheep (PPO): sheep", "1,234"]
    assert cells[3].split("\n") == ["wolves 5.50", "sheep −1.00"]
    for name, value, expected in (
        ("text", "FOX_0", ["killed"]),
        ("algorithm", "QMIX", ["tag"]),
        ("algorithm", "dqn", ["tuned"]),
        ("state", "interrupted", ["killed"]),
        ("from", "2026-11-22", ["killed"]),
        ("until", "2026-11-21", ["tag", "tuned", "foreign"]),
    ):
        choose(tab, name, value)
        assert shown(tab) == expected, (name, value)
        choose(tab, name, "")
    choose(tab, "text", "tag")
    run = RunDirectory.create(site.root, "tag-again", datetime(2026, 11, 23))
    servers = {"wolves": {"algorithm": "QMIX", "agents": ["wolf"]}}
    run.write_plan({"servers": servers, "assignment": "a", "seed": 0})
    tab.wait("document.querySelectorAll('[data-entry]').length === 2")
    assert tab.evaluate("document.querySelector('[data-filter=text]').value") == "tag"
    choose(tab, "text", "")
    tab.resize(390)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    tab.resize(1280)
    tab.evaluate(f"{row}.querySelector('a').click()")
    tab.wait("document.querySelector('svg.assignment')")
    assert tab.evaluate("document.querySelector('#trail').innerText") == (
        "all / runs / tag-20261121-000000"
    )
