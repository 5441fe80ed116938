"""What the README and the documents show is what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
# <!-- path --> and the code block below it.
SHOWN_FILE = re.compile(r"<!-- (\S+\.(?:py|yaml)) -->\n```\w+\n(.*?)```\n", re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
SETTINGS = re.compile(r"<!-- settings of (\w+) -->\n\n\|.*\|\n\|[-|]+\|\n((?:\|.*\|\n)+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_shown_files_are_verbatim(page: Path) -> None:
    for path, shown in SHOWN_FILE.findall(page.read_text()):
        assert shown == (ROOT / path).read_text(), f"{page.name} shows another {path}"


def test_the_readme_shows_the_loop() -> None:
    shown = [path for path, _ in SHOWN_FILE.findall((ROOT / "README.md").read_text())]
    assert "experiments/examples/twenty_lines.py" in shown


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    missing = [
        target
        for target in LINK.findall(page.read_text())
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert not missing


def test_documented_settings_are_the_algorithms_own() -> None:
    from muxrl.servers.algorithms.registry import ALGORITHMS, get_algorithm

    tables = SETTINGS.findall((ROOT / "docs" / "algorithms.md").read_text())
    # VDN's and IQL's are QMIX's.
    expected = [entry.name for entry in ALGORITHMS if entry.name not in ("VDN", "IQL")]
    assert [name for name, _ in tables] == expected
    for name, rows in tables:
        documented = dict(re.findall(r"^\| `(\w+)` \| `(.*?)` \|", rows, re.MULTILINE))
        settings = {k: str(v) for k, v in get_algorithm(name).settings().items()}
        assert documented == settings, f"docs/algorithms.md, settings of {name}"
