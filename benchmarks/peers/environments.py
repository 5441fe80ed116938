"""Makes the Python environments of other systems once, by venv and pip from pinned files.

RLlib 2.60 needs none, as it is in this project's own environment.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements")
DEFAULT_FOLDER = Path("~/.cache/muxrl/peers").expanduser()
OWN = "muxrl"
"""The environment that this program runs in."""
_STAMP = "requirements.sha256"
_VERSIONS = """
import json
from importlib.metadata import version, PackageNotFoundError
found = {}
for name in ("ray", "torch", "numpy", "gymnasium", "benchmarl", "torchrl", "sample-factory"):
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
print(json.dumps(found))
"""


class EnvironmentFailed(Exception):
    """An environment could not be made; the message says which, and what pip said."""


def environment(name: str, folder: Path) -> Path:
    """Returns the interpreter of an environment, and makes the environment if necessary.

    Args:
        name: `OWN`, or the name of a file in ``requirements/``.
        folder: of all environments.

    Raises:
        EnvironmentFailed: venv or pip failed; nothing of the environment is left.
    """
    if name == OWN:
        return Path(sys.executable)
    requirements = REQUIREMENTS / f"{name}.txt"
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    place = folder / name
    python, stamp = place / "bin" / "python", place / _STAMP
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"making the environment {place}", file=sys.stderr, flush=True)
    shutil.rmtree(place, ignore_errors=True)
    try:
        venv.create(place, with_pip=True)
        command = [str(python), "-m", "pip", "install", "-q", "--no-deps", "-r", str(requirements)]
        subprocess.run(command, check=True, stderr=subprocess.PIPE, text=True)
    except (subprocess.CalledProcessError, OSError) as error:
        shutil.rmtree(place, ignore_errors=True)
        said = str(getattr(error, "stderr", None) or error)[-1_000:]
        raise EnvironmentFailed(
            f"environment {name!r} of {requirements} could not be made in {place}: {said}"
        ) from error
    stamp.write_text(wanted)
    return python


def versions(pythons: Mapping[str, Path]) -> dict[str, dict[str, str]]:
    """Returns by environment and package the versions of packages that matter."""
    return {
        name: json.loads(subprocess.check_output([str(python), "-c", _VERSIONS], text=True))
        for name, python in pythons.items()
    }
