"""The committed config reference is what the code generates."""

import re

from muxrl.orchestrator.config_reference import DOCUMENT, SECTIONS, markdown


def test_committed_page_is_up_to_date():
    assert DOCUMENT.read_text(encoding="utf-8") == markdown(), (
        "docs/config.md is old; run python -m muxrl.orchestrator.config_reference"
    )


def test_every_field_has_a_row():
    page = markdown()
    for cls, where in SECTIONS.items():
        section = page.split(f"\n## {f'`{where}`' if where else 'Top level'}\n")[1].split("\n## ")[
            0
        ]
        rows = [line for line in section.splitlines() if line.startswith("- `")]
        own = cls.__annotations__  # without inherited fields
        sections = {path.rpartition(".")[2] for path in SECTIONS.values() if path}
        shown = {line.split("`")[1] for line in rows}
        assert shown <= own.keys()
        assert own.keys() - shown <= sections
        assert all(re.fullmatch(r"- `\w+`↻? \(.+?\): \S.+", line) for line in rows)
