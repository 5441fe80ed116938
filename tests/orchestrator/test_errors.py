"""The docstring of the orchestrator's errors draws all of them."""

import ast
import pickle
import re
from pathlib import Path

import pytest

from muxrl.client.errors import ServerUnavailable
from muxrl.orchestrator import errors
from muxrl.servers.training.policies import ServerProblem

FOLDER = Path(errors.__file__).resolve().parent


def tree(cls: type, depth: int = 0):
    """Yields depth, name and exit code of a class and of all classes below it."""
    yield depth, cls.__name__, cls.exit_code
    for child in cls.__subclasses__():
        yield from tree(child, depth + 1)


def test_the_docstring_draws_the_tree_with_its_exit_codes():
    drawn = []
    for line in errors.__doc__.splitlines():
        found = re.match(r"    ([│├└─ ]*)(\w+) +(\d)( {2}\S.*)?$", line)
        if found:
            drawn.append((len(found[1]) // 4, found[2], int(found[3])))
            assert found[4] or found[2] == "OrchestratorError"  # each class has a line of meaning
    assert sorted(drawn) == sorted(tree(errors.OrchestratorError))


def test_no_other_file_of_the_orchestrator_defines_an_error():
    elsewhere = [
        f"{path.relative_to(FOLDER)}: {node.name}"
        for path in FOLDER.rglob("*.py")
        # The exceptions of verdicts.py are outcomes of rules, and are caught where they are raised.
        if path not in (FOLDER / "errors.py", FOLDER / "compliance" / "verdicts.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        and any(re.search(r"(Error|Exception|Failed)$", ast.unparse(base)) for base in node.bases)
    ]
    assert elsewhere == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError(["seed: is -1"], "mine.yaml"), 2),
        (errors.CannotEvaluate("no such run"), 2),
        (errors.RunFailed("it died"), 1),
        (errors.NoPlace("it is full"), 1),
        (errors.SweepIsRunning("wait"), 1),
        (FileExistsError("runs/a"), 2),
        (OSError("disk full"), 1),
        (ServerUnavailable("gone", server_id="a"), 1),
        (ServerProblem("no"), 1),
    ],
)
def test_expected_errors_have_an_exit_code(error, code):
    assert errors.is_expected(error)
    assert errors.exit_code_of(error) == code
    assert not errors.is_expected(KeyError("agent_0")), "a bug"
    assert not errors.is_expected(SystemExit(3))


@pytest.mark.parametrize(
    "error",
    [
        errors.ConfigError(["one", "two"], "mine.yaml"),
        errors.NotARunDirectory(Path("runs/a"), "it is empty"),
        errors.NotASweepDirectory(Path("sweeps/a"), "it is empty"),
        errors.DifferentRuns("a", "b", "the seed"),
        errors.MalformedMetrics(Path("a.jsonl"), 3),
    ],
)
def test_errors_cross_processes(error):
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
