"""The page of a run in a browser draws what the run's files hold, and loads nothing else."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from tests.orchestrator.records.recorded import evaluation, new_run, write_whole_run
from tests.orchestrator.reports.test_judged import add_untrained
from tests.orchestrator.watch.browser import Browser
from tests.orchestrator.watch.conftest import Site

from muxrl.orchestrator.measure.number_text import interval_lines, signed_lines
from muxrl.orchestrator.measure.results import results_of
from muxrl.orchestrator.measure.statistics import Estimate
from muxrl.orchestrator.records.metrics import MetricsWriter
from muxrl.orchestrator.records.recorded_run import RecordedRun
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.records.run_status import StatusFile
from muxrl.protocol.messages import ServerWarning

# For each line of a picture: its points in pixels, and which pixels the labels of the axes are at.
READ_PICTURES = """
[...document.querySelectorAll('[data-server] figure svg')].map((picture) => ({
  server: picture.closest('[data-server]').dataset.server,
  lines: Object.fromEntries([...picture.querySelectorAll('.series')].map((series) => [
    series.dataset.name, {
      line: series.querySelector('.line').getAttribute('d'),
      band: series.querySelector('.band')?.getAttribute('d') || '',
    }])),
  x: [...picture.querySelectorAll('text.x')].map((t) => [+t.dataset.value, +t.getAttribute('x')]),
  y: [...picture.querySelectorAll('text.y')].map((t) =>
    [+t.dataset.value, +t.getAttribute('y') - 3.5]),
}))
"""
READ_STRIPS = """
[...document.querySelectorAll('.striprow')].map((row) => [
  row.dataset.server, row.innerText,
  [...row.querySelectorAll('.state')].map((s) => [s.dataset.state, s.getAttribute('d')])])
"""
READ_WHAT_STANDS_OUT = """
[...document.querySelectorAll('main *')]
  .filter((e) => e.getBoundingClientRect().right > innerWidth + 0.5)
  .map((e) => e.outerHTML.slice(0, 200))
"""
POINT_AT_A_PICTURE = """
document.querySelector('figure svg').dispatchEvent(
  new PointerEvent('pointermove', {clientX: 300, clientY: 300}))
"""


def joint(time_s: float, env_steps: int, level: float, **servers: Any) -> dict[str, Any]:
    by_agent = {"wolf_0": level, "wolf_1": level + 1.0, "sheep": -level}
    return {
        "time_s": time_s,
        "env_steps": env_steps,
        "episodes": env_steps // 10,
        "env_steps_per_s": 100.0 + time_s,
        "episode_return_mean": by_agent,
        "servers": servers,
    }


def own(time_s: float, learning_s: float, held_s: float, **more: float) -> dict[str, float]:
    seconds = {"time_s": time_s, "learning_s": learning_s, "held_s": held_s}
    return {**seconds, "num_refused": 0, **more}


def long_run(root: Path) -> RunDirectory:
    run = new_run(root)
    StatusFile(run).enter("running", 0)
    write_whole_run(run)
    (run.metrics / "joint.jsonl").unlink()
    with MetricsWriter(run) as metrics:
        for i in range(1, 61):
            wolves, sheep = own(i, 0.5 * i, 0.25 * i), own(i, 0.1 * i, 0.0)
            level = float(np.sin(i / 7) + i / 20)
            metrics.joint(joint(i, 20 * i, level, wolves=wolves, sheep=sheep))
    run.log("wolves").write_text("first line\n2026 WARNING muxrl: <b>odd</b>\n")
    return run


def show(tab: Browser, site: Site, run: RunDirectory) -> None:
    tab.open(f"{site.address}/?of={quote(run.path.relative_to(site.root).as_posix())}")
    tab.wait("document.querySelector('h1')")


def points_of(picture: dict[str, Any], path: str) -> np.ndarray:
    """Returns ``[num_points, 2]`` in the units of the axes, read off their labels."""
    pixels = np.array(re.findall(r"[ML](-?[\d.]+),(-?[\d.]+)", path), float)
    scales = [np.polyfit(*np.array(picture[axis])[:, ::-1].T, 1) for axis in ("x", "y")]
    return np.column_stack([np.polyval(scale, pixels[:, i]) for i, scale in enumerate(scales)])


def test_the_pictures_show_what_the_files_hold(tab: Browser, site: Site) -> None:
    run = long_run(site.root)
    show(tab, site, run)
    recorded = RecordedRun.read(run.path)
    report = results_of([recorded])
    pictures = {p["server"]: p for p in tab.evaluate(READ_PICTURES)}
    assert set(pictures) == {"wolves", "sheep"}
    for server in report.servers:
        picture = pictures[server.server_id]
        curve = recorded.training[server.server_id]
        training = points_of(picture, picture["lines"]["training"]["line"])
        expected = np.column_stack([curve.env_steps, curve.returns])
        assert training == pytest.approx(expected, abs=0.02, rel=1e-3)
        for name, of in (("evaluated", "learned"), ("random", "random")):
            estimates = [getattr(point, of) for point in server.curve]
            env_steps = [point.env_steps for point in server.curve]
            line = points_of(picture, picture["lines"][name]["line"])
            means = [e.mean for e in estimates]
            assert line == pytest.approx(np.array([env_steps, means]).T, abs=0.02, rel=1e-3)
            lows_then_highs = points_of(picture, picture["lines"][name]["band"])[:, 1]
            ends = [e.low for e in estimates] + [e.high for e in estimates][::-1]
            # Both draw the interval of the earlier point with fewer resamples.
            assert lows_then_highs == pytest.approx(np.array(ends), abs=0.05, rel=1e-2)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e7])
def test_the_labels_of_an_axis_differ_whatever_its_scale(
    tab: Browser, site: Site, scale: float
) -> None:
    run = new_run(site.root)
    with MetricsWriter(run) as metrics:
        for i in range(5):
            metrics.joint(joint(i, 1_000_000 + 100 * i, (100 + i) * scale))
    show(tab, site, run)
    labels = tab.evaluate("""[...document.querySelectorAll('figure svg')].map((picture) =>
        ['x', 'y'].map((axis) => [...picture.querySelectorAll(`text.${axis}`)]
            .map((label) => [label.textContent, +label.dataset.value])))""")
    assert labels
    for axes in labels:
        for axis in axes:
            assert len(axis) > 1
            assert len({text for text, _ in axis}) == len(axis)


def test_numbers_and_names_are_those_of_the_report(tab: Browser, site: Site) -> None:
    run = long_run(site.root)
    add_untrained(run, wolves=[5.0, 6.0], sheep=[0.0, 0.0])
    show(tab, site, run)
    tab.wait("document.querySelector('td[data-name=untrained]')")
    rows = tab.evaluate("[...document.querySelectorAll('tbody tr')].map((row) => row.innerText)")
    for row, server in zip(rows, results_of([RecordedRun.read(run.path)]).servers, strict=True):
        final: Any = server.final
        shown = map(interval_lines, (final.learned, final.random, final.untrained))
        name, algorithm, _, *cells = row.replace("\u00a0", " ").split("\t")
        assert (name.strip(), algorithm) == (server.server_id, server.algorithm)
        assert cells == [*map(" ".join, (*shown, signed_lines(final.advantage))), final.verdict]
    assert rows[0].endswith("better than random, not than untrained")
    text = tab.evaluate("document.body.innerText")
    assert "1,200" in text, "env steps"
    assert "0:01:00" in text, "seconds of training"
    picture = tab.evaluate("document.querySelector('svg.assignment').textContent")
    for name in ("wolves", "QMIX", "wolf_0–1", "sheep", "PPO"):
        assert name in picture
    assert "first line" in tab.evaluate("document.querySelector('pre').textContent")
    assert tab.evaluate("document.querySelector('pre .bad').textContent").strip().endswith("</b>")


def test_small_numbers_have_the_digits_that_reports_give_them(tab: Browser, site: Site) -> None:
    show(tab, site, long_run(site.root))
    for ends in ((0.001, 0.0006, 0.0014), (2.5, 0.001, 5.0), (0.001, -3.0, 3.1), (5.0, 5.0, 5.0)):
        shown = tab.evaluate(f"signedInterval({[*ends]}, 2)").replace("\u00a0", " ")
        assert shown == " ".join(signed_lines(Estimate(*ends)))
    assert tab.evaluate("decimals(-0.001, 2)") == "−0.001"


def test_a_refused_checkpoint_and_warnings_stand_above_all(tab: Browser, site: Site) -> None:
    run = long_run(site.root)
    text = "a reward is <b>9e+11</b>: is it a mistake?"
    warnings = {"sheep": [ServerWarning("far rewards", 1_212, 40, text)]}
    file = StatusFile(run)
    file.warn(warnings, "no checkpoint of server 'sheep'")
    show(tab, site, run)
    alarm = "document.querySelector('header [role=alert]')"
    assert tab.evaluate(f"{alarm}.textContent") == "no checkpoint of server 'sheep'"
    notes = tab.evaluate("document.querySelector('header .notes').innerText")
    assert f"sheep: far rewards 1,212×, first at 40 env steps: {text}" in notes
    file.warn(warnings, "")
    tab.wait(f"!{alarm}")


def areas_of(paths: list[tuple[str, str]]) -> dict[str, float]:
    """Returns the area of each state in a strip."""
    areas = {}
    for state, d in paths:
        boxes = re.findall(r"M([\d.]+),([\d.]+)H([\d.]+)V([\d.]+)", d)
        sides = np.array(boxes, float).reshape(-1, 4)
        areas[state] = float(((sides[:, 2] - sides[:, 0]) * (sides[:, 1] - sides[:, 3])).sum())
    return areas


def test_strips_show_for_how_long_a_server_learned_and_held(tab: Browser, site: Site) -> None:
    show(tab, site, long_run(site.root))
    drawn = tab.evaluate(READ_STRIPS)
    expected = {
        "wolves": {"acting": 0.5, "learning": 0.25, "holding": 0.25, "waiting": 0},
        "sheep": {"acting": 0.675, "learning": 0.1, "holding": 0, "waiting": 0.225},
    }
    assert [server for server, *_ in drawn] == list(expected)
    for server, words, paths in drawn:
        areas = areas_of(paths)
        whole = sum(areas.values())
        shares = {state: area / whole for state, area in areas.items()}
        assert shares == pytest.approx(expected[server] | {"silent": 0, "lost": 0}, abs=0.01)
        for state, share in expected[server].items():
            assert (f"{state} " in words) == (share > 0)


def test_losses_and_resumes_are_drawn_where_and_as_long_as_they_were(
    tab: Browser, site: Site
) -> None:
    run = new_run(site.root)
    with MetricsWriter(run) as metrics:
        for time_s, sheep, more in (
            (1.0, own(1, 0, 0), {}),
            (2.0, {"is_lost": True, "lost_s": 0.25}, {"restarted": ["sheep"]}),
            (3.0, {"is_lost": True, "lost_s": 1.25}, {}),
            (4.0, own(0.5, 0, 0, lost_s=1.75), {}),
            (6.0, {}, {"resumed_from": 85}),  # the server has not reported yet
            (7.0, own(2, 0, 0), {}),
        ):
            row = joint(time_s, int(20 * time_s), 1.0, wolves=own(time_s, 0, 0), sheep=sheep)
            metrics.joint(row | more)
    show(tab, site, run)
    (paths,) = (paths for who, _, paths in tab.evaluate(READ_STRIPS) if who == "sheep")
    (width,) = {
        int(box.split()[2])
        for box in tab.evaluate(
            "[...document.querySelectorAll('.striprow svg')].map((s) => s.getAttribute('viewBox'))"
        )
    }
    seconds = {state: area / 34 * 7.0 / width for state, area in areas_of(paths).items()}
    assert (seconds["lost"], seconds["silent"]) == pytest.approx((1.75, 0.75), abs=0.02)
    assert sum(seconds.values()) == pytest.approx(4.0, abs=0.02), "nothing is known of 4 to 6 s"
    marks = """[...document.querySelectorAll('article')].flatMap((card) => {
        const [axis] = card.querySelectorAll('.name');
        const at = (of) => [...card.querySelectorAll(of)];
        const x = at('text.x').map((label) => [+label.dataset.value, +label.getAttribute('x')]);
        return at('.mark').map((mark) => [axis?.textContent, mark.textContent, x,
                                          +mark.getAttribute('x1')]);})"""
    found = set()
    for axis, what, labels, at in tab.evaluate(marks):
        slope, begin = np.polyfit(*np.array(labels)[:, ::-1].T, 1)
        found.add((axis, what, round(slope * at + begin, 1)))
    assert found == {
        ("env steps", "sheep started again", 40.0),
        ("env steps", "resumed", 85.0),
        ("time of training", "sheep started again", 2.0),
        ("time of training", "resumed", 4.0),
    }


def test_latencies_and_restarts_stand_at_their_server(tab: Browser, site: Site) -> None:
    run = long_run(site.root)
    status = StatusFile(run)
    status.note_restart("sheep")
    status.note_restart("sheep")
    medians = [0.0002 * 1.05**i for i in range(1, 41)]
    with MetricsWriter(run) as metrics:
        for i, median in enumerate(medians, start=61):  # earlier records are of an old version
            wolves = own(i, 31, 16, exchange_p50_s=median, exchange_p99_s=20 * median)
            metrics.joint(joint(i, 20 * i, 1.0, wolves=wolves, sheep=own(i, 6, 0)))
    show(tab, site, run)
    words = {server: words for server, words, _ in tab.evaluate(READ_STRIPS)}
    newest = 1e3 * medians[-1]
    assert f"; latency p50 {newest:.3g} ms, p99 {20 * newest:.3g} ms" in words["wolves"]
    assert "started again" not in words["wolves"]
    assert words["sheep"].endswith(", started again 2×")
    assert "latency" not in words["sheep"]
    (picture,) = tab.evaluate(READ_PICTURES.replace("data-server", "data-latency"))
    picture["y"] = [[np.log10(value), at] for value, at in picture["y"]]
    for name, factor in (("p50", 1e3), ("p99", 2e4)):
        times, logs = points_of(picture, picture["lines"][name]["line"]).T
        assert times == pytest.approx(np.arange(61, 101), abs=0.2)
        assert logs == pytest.approx(np.log10(np.array(medians) * factor), abs=0.01)


def test_an_update_arrives_while_the_run_goes_on(tab: Browser, site: Site) -> None:
    run = long_run(site.root)
    show(tab, site, run)
    assert tab.evaluate("document.querySelector('.pill').textContent") == "running"
    tab.evaluate("window.before = document.querySelector('#page')")
    with MetricsWriter(run) as metrics:
        metrics.joint(joint(61, 5_000, 9.0, wolves=own(61, 31, 16), sheep=own(61, 6, 0)))
        for replaced, gain in ((None, 8.0), ("wolves", 1.0), ("sheep", 8.0)):
            returns = [gain, gain + 1], [gain, gain + 1], [0.0, 0.0]
            metrics.evaluation(evaluation(5_000, replaced, *returns))
    with run.log("wolves").open("a") as log:
        log.write("a third line\n")
    StatusFile(run).enter("done", 5_000)
    tab.wait("document.querySelector('.pill').textContent === 'done'")
    tab.wait("document.body.innerText.includes('a third line')")
    tab.wait("document.querySelector('tbody').innerText.includes('8.50')")
    (wolves,) = (p for p in tab.evaluate(READ_PICTURES) if p["server"] == "wolves")
    assert points_of(wolves, wolves["lines"]["training"]["line"])[-1] == pytest.approx(
        [5_000, 9.5], rel=1e-2
    )
    assert tab.evaluate("window.before === document.querySelector('#page')"), "without a reload"


def test_nothing_is_loaded_from_elsewhere_and_nothing_is_written(tab: Browser, site: Site) -> None:
    run = long_run(site.root)
    before = {p: p.stat().st_mtime_ns for p in site.root.rglob("*")}
    tab.requests.clear()
    tab.complaints.clear()
    show(tab, site, run)
    tab.evaluate(POINT_AT_A_PICTURE)
    assert "evaluated" in tab.evaluate("document.querySelector('.readout').textContent")
    assert {p: p.stat().st_mtime_ns for p in site.root.rglob("*")} == before
    assert {re.sub(r"\?.*", "", url) for url in tab.requests} == {
        f"{site.address}/",
        f"{site.address}/events",
    }
    assert tab.complaints == []
    assert tab.evaluate("""(() => { const image = new Image(); image.src = 'http://127.0.0.1:9/x.png';
        document.body.append(image); return true; })()""")
    tab.wait("true")
    assert any("Content Security Policy" in c for c in tab.complaints), "the policy holds"


HOSTILE = "<img src=x onerror=hacked=1>"


def test_names_and_logs_are_text_and_never_markup(tab: Browser, site: Site) -> None:
    run = RunDirectory.create(site.root, "hostile", datetime(2026, 11, 21))
    servers = {
        "a": {"algorithm": HOSTILE, "agents": [HOSTILE, "</script><script>hacked=2</script>"]}
    }
    run.write_plan({"servers": servers, "assignment": f"a:{HOSTILE}", "seed": 0})
    StatusFile(run).enter("failed", 0, HOSTILE)
    with MetricsWriter(run) as metrics:
        row = joint(1.0, 5, 1.0) | {"restarted": [HOSTILE], "episode_return_mean": {HOSTILE: 1.0}}
        metrics.joint(row)
    run.log("a").write_text("</pre><script>hacked=3</script>\n\x00\xff\n")
    tab.complaints.clear()
    show(tab, site, run)
    assert tab.evaluate("typeof hacked") == "undefined"
    assert tab.evaluate("document.querySelectorAll('img, main script').length") == 0
    text = tab.evaluate("document.body.innerText")
    assert HOSTILE in text
    assert "</pre><script>hacked=3</script>" in text
    assert tab.complaints == []


@pytest.mark.parametrize(
    ("width", "media"),
    [(390, ""), (768, ""), (1280, ""), (718, "print")],  # as wide as A4 within its margins
)
def test_the_page_fits_its_window(tab: Browser, site: Site, width: int, media: str) -> None:
    run = RunDirectory.create(
        site.root, "a_run_with_a_name_that_does_not_end_soon_" * 3, datetime(2026, 11, 21)
    )
    servers = {
        f"a_server_with_a_long_name_{i}": {
            "algorithm": "PPO",
            "agents": [f"an_agent_with_a_name_of_many_letters_{i}_{j}" for j in range(0, 30, 2)],
        }
        for i in range(8)
    }
    run.write_plan({"servers": servers, "assignment": "|".join(servers) * 3, "seed": 0})
    with MetricsWriter(run) as metrics:
        for i in range(1, 5):
            returns = {a: 1e7 * i for s in servers.values() for a in s["agents"]}
            states = {s: own(i, 0.4 * i, 0.2 * i) for s in servers}
            metrics.joint(
                {**joint(1e5 * i, 10**8 * i, 0.0, **states), "episode_return_mean": returns}
            )
    run.log("a_server_with_a_long_name_0").write_text("x" * 2_000 + "\n")
    tab.resize(width)
    tab.call("Emulation.setEmulatedMedia", media=media)
    try:
        show(tab, site, run)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert tab.evaluate(READ_WHAT_STANDS_OUT) == []
    finally:
        tab.call("Emulation.setEmulatedMedia", media="")
        tab.resize(1280)


def test_a_folder_that_is_no_run_is_named_and_shown_once_it_is_one(
    tab: Browser, site: Site
) -> None:
    (site.root / "later" / "metrics").mkdir(parents=True)
    tab.open(f"{site.address}/?of=later")
    tab.wait("document.body.innerText.includes('it has no plan.json')")
    (site.root / "later" / "plan.json").write_text('{"servers": {"a": {"algorithm": 1}}}')
    tab.wait("document.body.innerText.includes('has no algorithm or agents')")
    servers = {"a": {"algorithm": "PPO", "agents": ["x"]}}
    plan = json.dumps({"servers": servers, "assignment": "a:x", "seed": 0})
    (site.root / "later" / "plan.json").write_text(plan)
    tab.wait("document.querySelector('svg.assignment')")
