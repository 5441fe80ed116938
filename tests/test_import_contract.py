"""Which modules may import which: the layers, no circles, and how light a simulation's side is."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

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


def modules_of(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


@cache
def imports(path: Path) -> tuple[tuple[int, str, tuple[str, ...]], ...]:
    """Returns line, module and imported names of every import, even inside functions."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, ()
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
            yield node.lineno, node.module or "", tuple(alias.name for alias in node.names)


def importing(paths: Iterable[Path], is_wrong: Callable[[str, Any], object]) -> list[str]:
    """Returns the imports of these files that are wrong by their module and names."""
    return [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in paths
        for line, module, names in imports(path)
        if is_wrong(module, names)
    ]


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("muxrl", *(parts[:-1] if parts[-1] == "__init__" else parts)))


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_knows_only_those_below_it(layer: str) -> None:
    assert modules_of(layer)
    above = tuple(f"muxrl.{one}." for one in FORBIDDEN[layer])
    assert not importing(
        modules_of(layer),
        lambda module, names: (
            f"{module}.".startswith(above)
            or (module == "muxrl" and not FORBIDDEN[layer].isdisjoint(names))
        ),
    )


def test_a_server_names_no_algorithm() -> None:
    """What an algorithm needs of its server comes with its entry, which the registry finds."""
    algorithms = ROOT / "servers" / "algorithms"
    their_own = tuple(
        f"{name_of(path)}."
        for path in (*algorithms.glob("*/__init__.py"), *algorithms.glob("[!_]*.py"))
    )
    assert {"muxrl.servers.algorithms.a2c.", "muxrl.servers.algorithms.qmix."} < {*their_own}
    assert not importing(
        [path for path in modules_of("servers") if algorithms not in path.parents],
        lambda module, names: any(
            one.startswith(their_own) for one in (f"{module}.", *(f"{module}.{n}." for n in names))
        ),
    )


@pytest.mark.parametrize(
    "folder",
    ["client", "servers", "protocol", "orchestrator", "experiments", "tests", "benchmarks"],
)
def test_everything_is_imported_from_muxrl(folder: str) -> None:
    """A bare `client` or `servers` belongs to the user, wherever it is."""
    bare = {layer.partition("/")[0] for layer in LAYERS}
    assert not importing(modules_of(folder), lambda module, _: module.partition(".")[0] in bare)


def test_no_files_import_each_other_in_a_circle() -> None:
    """Imports inside functions and for type checkers count, too."""
    files = {
        name_of(path): path
        for folder in ("protocol", "client", "servers", "orchestrator", "experiments")
        for path in modules_of(folder)
    }
    needs: dict[str, set[str]] = {}
    for name, path in files.items():
        needs[name] = set()
        for _, module, names in imports(path):
            below = [f"{module}.{n}" for n in names if f"{module}.{n}" in files]
            needs[name].update(below or ([module] if module in files else []))
        # An `__init__` imports files of its folder; these import each other, not the package.
        needs[name].discard(name)
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        pytest.fail("imports in a circle: " + " <- ".join(error.args[1]))


@pytest.mark.parametrize("layer", ["servers", "orchestrator"])
def test_rooms_import_only_those_that_the_architecture_draws_below_them(layer: str) -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    drawn = page.split(f"<!-- rooms of {layer}, from the top -->\n\n```\n")[1].split("```")[0]
    height = {line.split()[0]: -row for row, line in enumerate(drawn.splitlines())}
    folders = {path.name for path in (ROOT / layer).iterdir() if (path / "__init__.py").exists()}
    assert set(height) == folders

    def is_upward(room: str, module: str, names: Sequence[str]) -> bool:
        for imported in (module, *(f"{module}.{name}" for name in names)):
            other = imported.removeprefix(f"muxrl.{layer}.").partition(".")[0]
            if other in height and other != room and height[room] <= height[other]:
                return imported.startswith(f"muxrl.{layer}.")
        return False

    for room in height:
        paths = modules_of(f"{layer}/{room}")
        assert not importing(paths, lambda *imported, room=room: is_upward(room, *imported))


def test_the_protocol_needs_msgspec_numpy_and_websockets_alone() -> None:
    known = set(sys.stdlib_module_names) | {"muxrl", "msgspec", "numpy", "websockets"}
    found = {m.partition(".")[0] for path in modules_of("protocol") for _, m, _ in imports(path)}
    assert found <= known


def assert_never(statements: Sequence[str], never: Sequence[str]) -> None:
    """Asserts that a process that runs these statements in turn never imports some modules."""
    code = f"""
import sys
for statement in {list(statements)!r}:
    exec(statement)
    if found := [name for name in {list(never)!r} if name in sys.modules]:
        sys.exit(f"{{statement}}: {{found}}")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_simulation_s_side_and_the_command_s_help_are_light() -> None:
    statements = [
        "import muxrl",
        "from muxrl import MultiplexingClient, PolicyClient",
        "import muxrl.protocol.codec",
        "import muxrl.client.env_loop",
        "import muxrl.client.random_policy",
        "import muxrl.client.adapters",
        "import muxrl.orchestrator.cli",
        "import muxrl.orchestrator.compliance.server_trial",
    ]
    assert_never(statements, HEAVY)


def test_modules_that_train_nothing_import_neither_ray_nor_torch() -> None:
    modules = [
        "config",
        "manage.listing",  # imported by muxrl runs
        "manage.stopping",
        "manage.logs",
        "watch.serving",
        "compliance.client_trial",
        "gateway.served",
        "reports.report",
        "trackers.session",
        "launch.whole_run",
        "supervise.server_process",
        "supervise.simulation_process",  # imported by a simulation's process
        "supervise.evaluation_process",
        "supervise.gateway_process",
        "supervise.fork_server",  # imported before the first server starts
    ]
    never = ("ray", "torch", "gymnasium", "pandas", "tensorboardX", "mlflow", "wandb",
             "matplotlib.pyplot")  # fmt: skip
    assert_never([f"import muxrl.orchestrator.{module}" for module in modules], never)


def test_a_simulation_s_process_imports_the_client_alone() -> None:
    """Only the environment may import more, here PettingZoo."""
    evaluation = """
from muxrl.orchestrator.config.schema import ExperimentConfig, SimulationConfig
from muxrl.orchestrator.supervise.evaluation_process import EvaluationProcess
env = "muxrl.experiments.simulations.torus_chase:TorusChase"
EvaluationProcess(ExperimentConfig(simulation=SimulationConfig(env)), 1)
import muxrl.client.env_loop, muxrl.client.stand_in
"""
    never = ("ray", "torch", "scipy", "pandas", "matplotlib", "muxrl.servers.server")
    assert_never([evaluation], never)


def test_an_experiment_is_resolved_without_torch() -> None:
    """Resolving muxrl's own algorithms must not import torch, which takes seconds."""
    teams = ['servers.all.agents=["*"]', 'servers.all.groups={all: ["*"]}', "stop.env_steps=10"]
    statements = [
        f"prepare(load_config('spread', [*{teams!r}, 'servers.all.algorithm={name}']))"
        for name in ("QMIX", "MAPPO", "MADDPG")
    ]
    begin = "from muxrl.orchestrator.config import load_config, prepare"
    assert_never([begin, "prepare(load_config('chase'))", *statements], ("torch", "ray"))


LEARNS = """
from tests.servers.resumable import Served, plan_of
for case in {cases!r}:
    served = Served(plan_of(case))
    served.play(0, 23)
    served.end()
    assert served.policies.acting.weights_seq_no > 0, case
"""


def test_learners_do_not_import_torchs_compiler() -> None:
    """It would take a second and 75 MiB in every server."""
    learning = LEARNS.format(cases=["PPO", "DQN", "QMIX", "MASAC"])
    assert_never([learning], ("torch._dynamo", "ray", "sympy"))


CORE = ("agents", "checkpoints", "episodes", "network", "trainers", "training")
LIBRARIES = ("ray", "torch", "gymnasium", "tree", "scipy", "pandas")
DOORS = {
    "trainers/interface.py": {"gymnasium"},  # the spaces that users' trainers are made for
    "trainers/algorithm.py": {"gymnasium"},
    "trainers/entry.py": {"gymnasium"},
    "trainers/check_trainer.py": {"gymnasium"},
    "trainers/stable_baselines3.py": {"gymnasium", "torch"},  # the adapter of a library
}
"""Files of a server's core that may know a library, even in functions and for type checkers."""


def core_modules() -> list[Path]:
    """Returns the files of a server's core, without RLlib's adapter, which is a library's own."""
    files = [path for room in CORE for path in modules_of(f"servers/{room}")]
    return [path for path in files if path.parent.name != "rllib"]


def test_a_server_s_core_knows_no_library() -> None:
    found: dict[str, set[str]] = {}
    for path in core_modules():
        known = {module.removeprefix("muxrl.servers.") for _, module, _ in imports(path)}
        roots = {module.partition(".")[0].removesuffix("_spaces") for module in known}
        if roots & {*LIBRARIES}:
            found[str(path.relative_to(ROOT / "servers"))] = roots & {*LIBRARIES}
    assert found == DOORS


def test_a_server_s_core_runs_without_any_library() -> None:
    """Random policies run, too; `stable_baselines3` and its like are left out."""
    core = [name_of(path) for path in core_modules()]
    assert len(core) > 50
    code = f"""
import sys
sys.modules.update(dict.fromkeys({LIBRARIES}))
from importlib import import_module
for name in {[name for name in core if not name.endswith(("stable_baselines3", "sb3_contrib"))]}:
    import_module(name)
import numpy as np
from muxrl.protocol.spaces import Box, Discrete
from muxrl.servers import server
from muxrl.servers.agents.seating import Seating
from muxrl.servers.config import AgentPlan, ServerPlan
from muxrl.servers.alone import Alone
from muxrl.servers.fixed_policies import plain
agents = {{"a": AgentPlan("p", Box((2,)), Discrete(3))}}
alone = Alone(agents, Seating().make_seats(ServerPlan("one", "RANDOM", agents, {{}}, None)))
look = alone.look({{"a": np.ones(2, np.float32)}})
assert look.block.observations[0].tolist() == [[[1, 1]]]
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


NEWER = {
    "enum": {"StrEnum", "ReprEnum", "member", "nonmember", "verify"},
    "datetime": {"UTC"},
    "typing": {"Self", "Never", "LiteralString", "NotRequired", "Required", "Unpack",
               "TypeVarTuple", "assert_never", "assert_type", "dataclass_transform",
               "reveal_type", "override"},
    "contextlib": {"chdir"},
    "asyncio": {"TaskGroup", "Runner", "timeout"},
    "tomllib": {""},
}  # fmt: skip
"""By module: names that Python 3.10 lacks; "" for the module itself."""


def test_modules_for_machines_without_servers_import_nothing_of_python_3_11() -> None:
    """ruff checks the syntax (`per-file-target-version`), a test of the wheel the rest."""
    light = [
        *(p for room in ("client", "protocol", "src/muxrl") for p in (ROOT / room).glob("**/*.py")),
        *(ROOT / "orchestrator/compliance").glob("**/*.py"),
        *(ROOT / "orchestrator/commands").glob("*.py"),
        *(ROOT / "orchestrator").glob("*.py"),
    ]
    assert len(light) > 60
    assert not importing(light, lambda module, names: NEWER.get(module, set()) & {"", *names})
