"""The notebook of `experiments/examples` runs cell by cell on a tiny budget."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from muxrl import Comparison, RunResult
from muxrl.orchestrator.config import load_config, prepare

NOTEBOOK = Path(__file__).parents[2] / "experiments" / "examples" / "notebook.ipynb"


def cells() -> list[dict[str, Any]]:
    return [c for c in json.loads(NOTEBOOK.read_text())["cells"] if c["cell_type"] == "code"]


def test_the_notebook_is_stored_without_outputs() -> None:
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells())


def test_the_notebook_s_config_is_valid_and_its_imports_exist() -> None:
    names: dict[str, Any] = {}
    exec("".join(cells()[0]["source"]), names)
    assert set(prepare(load_config(names["config"])).servers) == {"predators", "prey"}
    for cell in cells()[1:]:
        compile("".join(cell["source"]), "cell", "exec")


@pytest.mark.learning
@pytest.mark.night  # by day: its config; launch/test_background.py and comparisons
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_notebook_s_cells_run_and_show_their_last_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for cell in cells():
        source = re.sub(r"ENV_STEPS = [\d_]+", "ENV_STEPS = 2_000", "".join(cell["source"]))
        *first, last = ast.parse(source).body
        is_shown = isinstance(last, ast.Expr)
        exec(compile(ast.Module(first if is_shown else [*first, last], []), "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            shown.append(eval(compile(ast.Expression(last.value), "cell", "eval"), names))
    run, means, curves, returns, compared = shown
    assert isinstance(run, RunResult)
    assert run.outcome == "done"
    assert "predators (PPO)" in run._repr_html_()
    assert {server for server, _ in means.index} == {"predators", "prey"}
    assert len(curves.lines) == 2
    assert len(curves.lines[0].get_xdata()) >= 3
    assert set(returns) == {"predators", "prey"}
    assert isinstance(compared, Comparison)
    assert compared._repr_html_().count("<tr") >= 2
