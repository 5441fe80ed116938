"""A user's modules are found whatever they are called, and never replace other modules."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.nights import at_night

from muxrl.orchestrator import user_modules

ROOT = Path(__file__).resolve().parents[2]
ENV = "import gymnasium\ndef make_env(): return gymnasium.make('CartPole-v1')\n"
CONFIG = """
simulation: {env: "client:make_env"}
servers: {ppo: {agents: [agent]}}
stop: {env_steps: 100}
"""
CHECK_ALL = """
import sys
from muxrl.orchestrator.cli import main
for module in sys.argv[1:]:
    assert main(["check", "mine.yaml", f"simulation.env={module}:make_env"]) == 0, module
"""


MODULES = ["client.py", "servers/", "experiments.py", "protocol/", "orchestrator/", "six.py"]


def other_kind(name: str) -> str:
    """Returns a package's name for a module's, and the other way round."""
    return f"{name[:-1]}.py" if name.endswith("/") else f"{name.removesuffix('.py')}/"


@pytest.mark.parametrize(
    "modules", at_night([MODULES, [other_kind(name) for name in MODULES]], [MODULES])
)
def test_check_finds_a_user_s_modules_and_python_its_own(
    tmp_path: Path, modules: list[str]
) -> None:
    for name in modules:
        path = tmp_path / (f"{name}__init__.py" if name.endswith("/") else name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(ENV)
    for name in ("types", "queue", "random", "secrets", "statistics", "msgspec"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('the user's is not meant')\n")
    (tmp_path / "mine.yaml").write_text(CONFIG)
    names = [name.rstrip("/").removesuffix(".py") for name in modules]
    done = subprocess.run(
        # -P: like the installed command, which does not look into the current folder first
        [sys.executable, "-P", "-c", CHECK_ALL, *names],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("assignment: ppo:agent") == len(modules)
    (six,) = tmp_path.glob("six*")
    assert f"'six' is {six}" in done.stdout
    assert done.stdout.count("not the installed module of that name") == 1


def test_a_worker_appends_the_folders_of_the_process_that_started_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another test of this process may have added folders.
    monkeypatch.setattr(user_modules, "_added", [])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "scripts" / "mine.py")])
    monkeypatch.setattr(sys, "path", [str(tmp_path / "scripts"), "/elsewhere"])
    variables = user_modules.worker_variables()

    monkeypatch.chdir("/")
    monkeypatch.setattr(sys, "path", [str(tmp_path), "/python"])
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    user_modules.find_user_modules()
    assert sys.path == ["/python", str(tmp_path / "scripts"), str(tmp_path)]
    assert user_modules.worker_variables() == variables  # passed on by a worker, as by a trial


def test_outside_of_a_worker_nothing_is_appended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUXRL_USER_FOLDERS", raising=False)
    monkeypatch.setattr(sys, "path", ["", "/python"])
    user_modules.find_user_modules()
    assert sys.path == ["", "/python"]
