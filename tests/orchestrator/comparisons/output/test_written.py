"""The page, the CSV files, the JSON files and the frames of a comparison."""

import base64
import csv
import html
import importlib.metadata
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import get_args

import pytest
from tests.orchestrator.comparisons.compared_runs import made_up_run, row

from muxrl.orchestrator.comparisons.compare import Comparison, compare_runs
from muxrl.orchestrator.comparisons.findings.frames import TableName
from muxrl.orchestrator.comparisons.output.methods import _algorithm
from muxrl.orchestrator.storage.json_files import write_json
from muxrl.servers.lookup import own_algorithms

QMIX_PPO = "qmix hunters | ppo prey"


class Page(HTMLParser):
    """Collects the links of a page, and checks that its tags are closed."""

    VOID = ("meta", "img", "br", "link")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.images: list[str] = []
        self.open: list[str] = []
        self.num_tables = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids.add(found.get("id") or "")
        self.num_tables += tag == "table"
        if tag == "a":
            self.links.append(found.get("href") or "")
        if tag == "img":
            self.images.append(found.get("src") or "")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_report_stands_alone_and_its_links_lead_somewhere(written: Path) -> None:
    page = Page((written / "report.html").read_text())
    assert page.open == []
    assert page.num_tables >= 8
    assert page.images
    assert all(image.startswith("data:image/svg+xml;base64,") for image in page.images)
    inside = [link[1:] for link in page.links if link.startswith("#")]
    assert set(inside) <= page.ids
    runs = [link for link in page.links if not link.startswith("#")]
    assert len(runs) == 12
    assert all((written / link / "plan.json").is_file() for link in runs)


def test_columns_with_intervals_name_what_these_are_over(written: Path) -> None:
    tables = (written / "report.html").read_text().split("<table ")[1:]
    found = set()
    for table in tables:
        parts = table.partition("</table>")[0].replace("\u00a0", " ").split("<tr")
        heading, *rows = (re.findall(r"<t[hd][ >].*?</t[hd]>", part, re.S) for part in parts[1:])
        for place, text in enumerate(heading):
            if any(re.search(r"\[[−\d][^]]*\]", row[place]) for row in rows):
                found.update(re.findall(r"\[95 %, (.*?)\]", text) or [text])
    assert found == {"seeds"}


def test_figures_name_contestants_with_their_bars(written: Path) -> None:
    page = Page((written / "report.html").read_text())
    figures = [base64.b64decode(image.partition(",")[2]).decode() for image in page.images]
    assert any("qmix hunters |" in figure and "ppo prey" in figure for figure in figures)


def test_the_measurement_is_described_once_and_all_settings_are_listed(written: Path) -> None:
    text = (written / "report.html").read_text()
    assert text.count("evaluated after 1,000 env steps") == 1
    assert text.count("num_steps: 5") == 4  # once for each contestant, in a part that is folded
    assert "Baselines: mean and interval over 3 episodes" in text
    assert text.index("qmix is better than ppo by 2.00") < text.index('id="settings"')


def test_a_paper_s_paragraph_names_roles_seeds_budget_and_its_references(written: Path) -> None:
    text = (written / "methods.md").read_text().partition("\n\n")[0]
    assert "Each was trained with 3 seeds (1, 2, 3) for 1,000 env steps" in text
    assert "played by QMIX [QMIX]" in text
    assert "greedy actions" in text
    entries = (written / "references.bib").read_text()
    keys = re.findall(r"^@\w+\{(\w+),$", entries, re.M)
    assert set(keys) == set(re.findall(r"\[(\w+)\]", text)) >= {"muxrl", "rliable", "PPO"}
    for entry in re.split(r"(?<=^\}\n)", entries, flags=re.M):
        assert entry.count("{") == entry.count("}"), entry
    assert f"Version {importlib.metadata.version('muxrl')}" in entries
    page = (written / "report.html").read_text()
    assert text.strip() in html.unescape(page)


def table_of(text: str, title: str) -> list[list[str]]:
    """Returns the cells of the table under a heading."""
    part = text.partition(f"### {title}\n")[2].partition("\n#")[0]
    rows = [line for line in part.splitlines() if line.startswith("|") and "---" not in line]
    split = (re.split(r"(?<!\\)\|", row.strip("|")) for row in rows)
    return [[re.sub(r"\\(.)", r"\1", cell).strip() for cell in row] for row in split]


def test_all_settings_are_listed_and_shared_ones_only_once(tmp_path: Path) -> None:
    """Settings are listed whether they were given or not, by the defaults that a run recorded."""
    defaults = {"lr": 0.1, "gamma": 0.9, "clip": None, "replay": {"kind": "steps", "size": 5}}
    paths = [
        made_up_run(
            tmp_path,
            hunters,
            "PPO",
            seed,
            5.0,
            settings=settings,
            simulation={"num_processes": processes},
            defaults={**defaults, **({"mixer": "a|b"} if hunters == "QMIX" else {})},
        )
        for seed in (1, 2)
        for hunters, settings, processes in (
            ("QMIX", {"replay": {"size": 7}, "note": "given"}, 1),
            ("PPO", {"lr": 0.5}, 2),
        )
    ]
    found = compare_runs(paths, num_episodes=2)
    text = (found.write(tmp_path / "out").parent / "methods.md").read_text()
    shared = dict(table_of(text, "All contestants")[1:])
    assert shared["seeds"] == "1, 2"
    assert shared["simulation.kwargs.num_steps"] == "5"
    assert (shared["gamma"], shared["replay.kind"]) == ("0.9", "steps")
    assert (shared["evaluation.num_episodes"], shared["frame_stack"]) == ("20", "1")
    assert "lr" not in shared
    heading, *rows = table_of(text, "By contestant")
    assert heading == ["setting", *(contestant.name for contestant in found.contestants)]
    assert rows == [["simulation.num_processes", "1", "2"]]
    heading, *rows = table_of(text, "As hunters")
    assert heading == ["setting", "qmix", "ppo"]
    assert {name: cells for name, *cells in rows} == {
        "algorithm": ["QMIX", "PPO"],
        "lr": ["0.1", "0.5"],
        "replay.size": ["7", "5"],
        "mixer": ["a|b", "–"],
        "note": ["given", "–"],
    }
    assert ["lr", "0.1"] in table_of(text, "As prey")
    assert re.search(r"Not set: .*`clip`", text)
    assert "did not record" not in text


def test_defaults_that_were_not_recorded_are_noted(written: Path) -> None:
    text = (written / "methods.md").read_text()
    assert "Runs of qmix, ppo, a2c did not record their algorithms' defaults" in text


def test_a_paper_s_paragraph_names_software_and_hardware(tmp_path: Path) -> None:
    run = made_up_run(tmp_path, "QMIX", "PPO", 1, 5.0)
    commit = "0123456789abcdef" * 2 + "01234567"
    versions = {"ray": "2.60.0", "python": "3.11.7", "git_commit": commit, "hardware": "8 x EPYC"}
    write_json(run / "versions.json", versions)
    text = (compare_runs([run], num_episodes=2).write(tmp_path).parent / "methods.md").read_text()
    assert (
        "Software: python 3.11.7, ray 2.60.0, muxrl's source 0123456789; hardware: 8 x EPYC."
        in text
    )


def test_every_algorithm_has_a_reference() -> None:
    for entry in own_algorithms():
        source = "MADDPG" if entry.name == "MASAC" else entry.name
        assert f" [{source}]" in _algorithm("x", entry.name, ())


def test_names_are_escaped_in_the_page(tmp_path: Path) -> None:
    paths = [
        made_up_run(tmp_path, "QMIX", "PPO", s, 5.0, settings={"note": f"<script>{s}</script>"})
        for s in (1, 2)
    ]
    page = compare_runs(paths, num_episodes=2).write(tmp_path / "out").read_text()
    assert "<script>1" not in page
    assert "&lt;script&gt;1" in page


def test_the_same_comparison_writes_the_same_files(comparison: Comparison, written: Path) -> None:
    again = comparison.write(written.parent / "again").parent
    assert {path.name for path in again.iterdir()} == {path.name for path in written.iterdir()}
    for path in written.iterdir():
        assert path.read_bytes() == (again / path.name).read_bytes(), path.name


def test_the_files_have_the_values_of_the_frames(comparison: Comparison, written: Path) -> None:
    with (written / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    frame = comparison.frame()
    assert len(rows) == len(frame) == 12 * 4
    assert list(frame.columns) == list(rows[0])
    assert float(rows[0]["return"]) == pytest.approx(frame["return"][0])
    assert set(frame["seed"]) == {1, 2, 3}
    about = json.loads((written / "comparison.json").read_text())["contestants"][QMIX_PPO]
    assert about["assignment"] == frame["assignment"][0] == "qmix:agent_0,agent_1|ppo:agent_2"
    # Files name a run by its path relative to theirs: a report names no folder of the machine.
    assert not any(Path(row["run"]).is_absolute() for row in rows)
    assert [(written / row["run"]).resolve() for row in rows] == [Path(p) for p in frame["run"]]
    curves = comparison.frame("curves")
    assert len(curves) == 12 * 4 * 3
    standings = comparison.frame("standings")
    assert "baseline: random" in set(standings["contestant"])
    found = row(comparison, "standings", contestant=QMIX_PPO, subject="role:hunters").iqm
    first = standings.iloc[0]
    assert (first.iqm, first.iqm_low, first.iqm_high) == (found.mean, found.low, found.high)
    with pytest.raises(ValueError, match="there is no table 'run'"):
        comparison.frame("run")  # type: ignore[arg-type]


SCHEMAS = {
    "runs": (
        "contestant assignment seed subject return num_episodes env_steps time_s "
        "area_under_curve env_steps_to_threshold time_s_to_threshold random_in_place run"
    ),
    "curves": "contestant seed subject env_steps time_s return",
    "standings": (
        "contestant subject num_runs iqm* mean* area* threshold num_reached "
        "env_steps_to_threshold time_s_to_threshold"
    ),
    "roles": "role label num_runs num_contexts iqm* random_in_place",
    "pairings": "role first second improvement* difference* num_pairs",
    "parameters": "contestant subject parameter value iqm* num_runs num_episodes",
    "learners": (
        "role label others contestant num_runs num_below advantage* over_untrained* verdict"
    ),
    "matches": (
        "role player player_contestant others others_contestant pair return num_episodes "
        "trained_together run other_run"
    ),
    "payoffs": "role player others return* num_pairs",
    "ratings": "role player label env_steps rating* merit*",
}
"""By table: its columns. A star marks an estimate, whose interval's ends follow as two columns."""


@pytest.mark.parametrize("table", get_args(TableName))
def test_each_table_has_one_schema(comparison: Comparison, table: TableName) -> None:
    """Users read files and frames by these names."""
    expected = [
        name.replace("*", end)
        for name in SCHEMAS[table].split()
        for end in (("", "_low", "_high") if name.endswith("*") else ("",))
    ]
    assert list(comparison.frame(table).columns) == expected
