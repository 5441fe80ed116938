"""Who may import whom: the layers, and how light a simulation's side is."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = ("protocol", "client", "servers", "orchestrator", "experiments/simulations")
FORBIDDEN = {
    "protocol": {"client", "servers", "orchestrator", "experiments"},
    "client": {"servers", "orchestrator", "experiments"},
    "servers": {"client", "orchestrator", "experiments"},
    "orchestrator": {"experiments"},
    "experiments/simulations": {"client", "servers", "orchestrator"},
}
HEAVY = ("ray", "torch", "gymnasium", "omegaconf", "pettingzoo", "starlette", "matplotlib")


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the line and the package of every import of a module, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
            yield node.lineno, (node.module or "").partition(".")[0]


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_knows_only_those_below_it(layer: str) -> None:
    modules = sorted((ROOT / layer).rglob("*.py"))
    assert modules
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {package}"
        for path in modules
        for line, package in imported(path)
        if package in FORBIDDEN[layer]
    ]
    assert not found


def test_the_protocol_needs_msgspec_and_numpy_alone() -> None:
    known = set(sys.stdlib_module_names) | {"protocol", "msgspec", "numpy"}
    found = {name for path in (ROOT / "protocol").rglob("*.py") for _, name in imported(path)}
    assert found <= known


@pytest.mark.parametrize(
    "module",
    ["protocol.codec", "client", "client.env_loop", "client.random_policy", "client.adapters"],
)
def test_a_simulation_s_side_is_light(module: str) -> None:
    code = f"import {module}, sys; print([n for n in {HEAVY!r} if n in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_command_s_help_is_light() -> None:
    code = f"import orchestrator.cli, sys; print([n for n in {HEAVY!r} if n in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
