"""Makes README.md's demonstration: what `muxrl launch chase` shows, as one animated SVG.

    python docs/demonstration.py [key=value ...] > docs/images/demonstration.svg

It trains, for minutes. The frames are those of the run, its waits shortened.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

from rich.console import Console, Group, RenderableType
from rich.text import Text

from muxrl.orchestrator.config import load_config, prepare
from muxrl.orchestrator.launch import whole_run
from muxrl.orchestrator.launch.progress import Progress, Snapshot
from muxrl.orchestrator.measure.results import Report
from muxrl.orchestrator.reports.report import print_report

WIDTH = 80
NUM_FRAMES, FRAME_S, LAST_S = 14, 0.7, 8.0
PROMPT = Text("$ muxrl launch chase", style="bold")


def played(overrides: list[str]) -> tuple[list[RenderableType], Report]:
    """Returns what a run shows, and its report."""
    shown: list[RenderableType] = []

    class Recorded(Progress):
        def update(self, snapshot: Snapshot) -> None:
            super().update(snapshot)
            shown.append(Group(PROMPT, self._render()))

    experiment = prepare(load_config("chase", overrides))
    with (
        TemporaryDirectory() as folder,
        mock.patch.object(whole_run, "Progress", Recorded),
        mock.patch("sys.stdout", sys.stderr),
    ):
        run_dir = Path(folder) / "chase"
        result = whole_run.run_experiment(experiment, run_dir=run_dir, show_progress=True)
    assert result.report is not None, result.problem
    return shown, result.report


def console() -> Any:
    """Returns one of a fixed size, whose `file` keeps what it prints."""
    return Console(file=io.StringIO(), width=WIDTH, force_terminal=True, record=True)


def animated(screens: list[str]) -> str:
    """Returns screens that cover each other in turn; without animation the last one is seen."""
    height = max(screen.count("\n") for screen in screens)
    total_s = FRAME_S * (len(screens) - 1) + LAST_S
    frames, style = [], ""
    for i, screen in enumerate(screens):
        one = console()
        one.print(Text.from_ansi(screen + "\n" * (height - screen.count("\n"))))
        svg = one.export_svg(title="muxrl", unique_id=f"f{i}")
        frames.append(f'<g class="s{i}">{re.sub(r"@font-face {.*?}", "", svg, flags=re.S)}</g>')
        at = 100 * FRAME_S * i / total_s
        style += f"@keyframes k{i}{{0%{{visibility:hidden}}{at:.2f}%{{visibility:visible}}}}\n"
        style += f".s{i}{{animation:k{i} {total_s:.1f}s step-end infinite}}\n"
    (view,) = re.findall(r'viewBox="[\d. ]+"', frames[0])
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {view}>\n<style>\n{style}</style>\n'
    return head + "\n".join(frames) + "\n</svg>\n"


if __name__ == "__main__":
    shown, report = played(sys.argv[1:])
    screens = []
    for i in range(NUM_FRAMES):
        (screen := console()).print(shown[i * (len(shown) - 1) // (NUM_FRAMES - 1)])
        screens.append(screen.file.getvalue())
    print_report(report, screen := console())
    screens.append(screen.file.getvalue().partition("Evaluated after")[0])
    sys.stdout.write(animated(screens))
