"""Checkpoints: RLlib's files, and a note of what they are of.

RLlib stores modules with their classes, spaces, settings and weights, so that they can be built
again without the algorithm and its config. The note, ``muxrl.json``, says how a server used them.
It is written last, so that a checkpoint that has it is complete. A checkpoint of plain RLlib, which
has none, can be read, too.

RLlib's files are pickles, and loading a pickle runs the code in it: load only what you trust.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from muxrl.servers.algorithms.settings import AlgorithmProblem
from muxrl.servers.config import ServerPlan

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm import Algorithm
    from ray.rllib.core.rl_module.rl_module import RLModule

ABOUT_FILE = "muxrl.json"
_FORMAT = 1
_MODULES = Path("learner_group") / "learner" / "rl_module"
"""Where RLlib puts the modules that learn, critics and target networks included."""
_MOST_LISTED = 8


def save_checkpoint(
    algo: Algorithm, plan: ServerPlan, path: Path, counts: Mapping[str, Any]
) -> None:
    """Writes a checkpoint; no training may go on meanwhile.

    Args:
        algo: of the server.
        plan: the server's; its token is not written.
        path: a folder; made if absent.
        counts: how far training has come, such as ``env_steps``.

    Raises:
        OSError: it cannot be written.
    """
    path.mkdir(parents=True, exist_ok=True)
    about = path / ABOUT_FILE
    about.unlink(missing_ok=True)  # a checkpoint may be replaced
    algo.save_to_path(path.absolute())
    text = json.dumps({"format": _FORMAT, **_about(plan), **counts}, indent=2) + "\n"
    half = about.with_suffix(".half")
    half.write_text(text, encoding="utf-8")
    os.replace(half, about)


def _about(plan: ServerPlan) -> dict[str, Any]:
    return {
        "server_id": plan.server_id,
        "algorithm": plan.algorithm,
        "agents": {
            agent_id: {
                "policy": agent.policy_id,
                "group": agent.group,
                "observation_space": msgspec.to_builtins(agent.observation_space),
                "action_space": msgspec.to_builtins(agent.action_space),
            }
            for agent_id, agent in plan.agents.items()
        },
        "groups": {group: list(members) for group, members in plan.groups.items()},
        "state_size": plan.state_size,
        "settings": plan.settings,
        "model": plan.model,
        "rl_module": plan.rl_module,
        "seed": plan.seed,
    }


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk. Make one with `open`.

    Attributes:
        path: its folder, absolute.
        about: the content of ``muxrl.json``, {} if there is none.
    """

    path: Path
    about: Mapping[str, Any]

    @classmethod
    def open(cls, path: Path) -> Checkpoint:
        """Finds a checkpoint, without loading RLlib's files.

        Raises:
            AlgorithmProblem: there is none, or another version of muxrl wrote it.
        """
        path = path.expanduser().absolute()
        if not path.is_dir():
            raise AlgorithmProblem(f"there is no checkpoint at {str(path)!r}: no such folder")
        if not (path / _MODULES).is_dir():
            inside = sorted(str(p.relative_to(path)) for p in _checkpoints_below(path))
            shown = ", ".join(map(repr, inside[:_MOST_LISTED]))
            raise AlgorithmProblem(
                f"{str(path)!r} is no RLlib checkpoint: it has no folder {str(_MODULES)!r}"
                + (f"; did you mean one of those in it: {shown}?" if inside else "")
            )
        about: Any = {}
        with contextlib.suppress(FileNotFoundError):
            try:
                about = json.loads((path / ABOUT_FILE).read_text(encoding="utf-8"))
            except ValueError as error:
                raise AlgorithmProblem(
                    f"the {ABOUT_FILE} of checkpoint {str(path)!r} is not JSON ({error}); was it "
                    "edited?"
                ) from error
        if about and about.get("format") != _FORMAT:
            raise AlgorithmProblem(
                f"the {ABOUT_FILE} of checkpoint {str(path)!r} has the format "
                f"{about.get('format')!r}, this muxrl reads {_FORMAT}; was it written by another "
                "version?"
            )
        return cls(path, about)

    @property
    def algorithm(self) -> str | None:
        """Name of the algorithm that trained it, None if there is no note."""
        return self.about.get("algorithm")

    @property
    def env_steps(self) -> int:
        """Env steps of training so far, which exploration schedules go by.

        Without a note, they are in a pickle, whose code is run.

        Raises:
            AlgorithmProblem: RLlib's file with this count is broken.
        """
        if "env_steps" in self.about:
            return int(self.about["env_steps"])
        path = self.path / "env_runner" / "state.pkl"
        try:
            return int(pickle.loads(path.read_bytes()).get("num_env_steps_sampled_lifetime", 0))
        except FileNotFoundError:
            return 0
        except Exception as error:  # of a broken pickle, anything
            raise AlgorithmProblem(
                f"{str(path)!r} cannot be loaded: {type(error).__name__}: {error}"
            ) from error

    def load_modules(self) -> dict[str, RLModule]:
        """Builds the modules for acting: without critics, mixers and targets.

        Their files are pickles, whose code is run.

        Raises:
            AlgorithmProblem: a file is missing or broken, or a class cannot be imported.
        """
        from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
        from ray.rllib.core.rl_module.rl_module import RLModuleSpec

        modules: dict[str, RLModule] = {}
        try:
            whole = MultiRLModule.from_checkpoint(self.path / _MODULES)
            for name, module in whole.items():
                spec = RLModuleSpec.from_module(module)
                if not spec.learner_only:
                    spec.inference_only = True
                    modules[name] = spec.build()
                    modules[name].set_state(module.get_state(inference_only=True))
        except Exception as error:  # pickles of foreign code may raise anything
            raise AlgorithmProblem(
                f"checkpoint {str(self.path)!r} cannot be loaded: {type(error).__name__}: {error}"
            ) from error
        return modules


def _checkpoints_below(path: Path) -> list[Path]:
    """Returns the checkpoints in a run's folder, in its `checkpoints`, or in one server's."""
    candidates = (p for depth in ("*", "*/*", "*/*/*") for p in path.glob(depth))
    return [p for p in candidates if (p / _MODULES).is_dir()]
