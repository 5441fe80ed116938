"""Checkpoints: RLlib's files, and a note of what they are of.

RLlib stores modules with their classes, spaces, settings and weights, so that they can be built
again without the algorithm and its config. The note, ``muxrl.json``, says how a server used them.
It is written last, so that a checkpoint that has it is complete. A checkpoint of plain RLlib, which
has none, can be read, too. Beside it is what a server needs to go on and RLlib leaves out.

RLlib's files are pickles, and loading a pickle runs the code in it: load only what you trust. Ours
are none.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from muxrl.servers.checkpoints.formats import format_problem
from muxrl.servers.checkpoints.integrity import damage_of_server
from muxrl.servers.checkpoints.state_file import read_state, write_state
from muxrl.servers.config import ServerPlan
from muxrl.servers.setting_values import AlgorithmProblem

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm import Algorithm
    from ray.rllib.core.rl_module.rl_module import RLModule, RLModuleSpec

ABOUT_FILE = "muxrl.json"
STATE_FILE = "muxrl_state.npz"
REPLAY_FILE = "muxrl_replay.npz"
_FORMAT = 3
"""2 has another replay of steps."""
_MODULES = Path("learner_group") / "learner" / "rl_module"
"""Where RLlib puts the modules that learn, critics and target networks included."""
_HALF = ".half"
SET_ASIDE = ".unused"
"""Ends the name of a checkpoint from which its run does not go on; an earlier one was taken."""
_MOST_LISTED = 8
_LONGEST_SHOWN = 200
READ_ALIKE = ("scale_observations", "normalize_observations", "frame_stack")
"""Parts of the note, and of a plan, that say how networks read observations."""
_OF_PLAN = (
    "state_size",
    "team_reward",
    "use_global_state",
    *READ_ALIKE,
    "normalize_rewards",
    "model",
    "rl_module",
)
"""Parts of the note that a plan has under the same name."""
_MUST_BE_SAME = ("algorithm", "agents", "groups", *_OF_PLAN)
"""Parts of the note without which a server cannot go on from a checkpoint."""


def save_checkpoint(
    plan: ServerPlan,
    path: Path,
    counts: Mapping[str, Any],
    state: Mapping[str, Any],
    *,
    algo: Algorithm | None = None,
    replay: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> None:
    """Writes a checkpoint: the whole of it, or nothing. No training may go on meanwhile.

    Args:
        plan: the server's; its token is not written.
        path: a folder, replaced if it is there.
        counts: how far training has come, such as ``env_steps``.
        state: what RLlib leaves out, as plain values and arrays; see `resume`.
        algo: of the server, None if it does not learn.
        replay: like `state`; None if there is none, or it is not to be saved.
        defaults: every setting of its algorithm at its default, with which `plan.settings` are
            whole; None if it does not learn.

    Raises:
        OSError: it cannot be written; what was there is still there.
    """
    path = path.absolute()
    if path.is_dir() and any(path.iterdir()) and not (path / ABOUT_FILE).exists():
        raise FileExistsError(f"{path} is there, and is no checkpoint that could be replaced")
    half = path.with_name(f".{path.name}{_HALF}")
    shutil.rmtree(half, ignore_errors=True)  # of a process that was killed
    half.mkdir(parents=True)
    try:
        if algo is not None:
            algo.save_to_path(half)
        write_state(half / STATE_FILE, state)
        if replay is not None:
            write_state(half / REPLAY_FILE, replay)
        note = {"format": _FORMAT, **note_of(plan), **counts, "written_at": time.time()}
        if defaults is not None:
            note["defaults"] = defaults
        (half / ABOUT_FILE).write_text(json.dumps(note, indent=2) + "\n", encoding="utf-8")
        _sync(half)
        put_in_place(half, path)
    except BaseException:
        shutil.rmtree(half, ignore_errors=True)
        raise


def find_newest(run_dir: Path, server_id: str) -> Path | None:
    """Returns the newest checkpoint of a server in a run's directory, None if it has none."""
    folder = run_dir / "checkpoints"
    found = {}
    for pattern in (f"{server_id}/*", f"*/{server_id}"):
        for path in folder.glob(pattern):
            place = path if path.parent.name == server_id else path.parent
            if place.name.startswith(".") or place.name.endswith((_HALF, SET_ASIDE)):
                continue  # it grows, nobody finished it, or its run goes on from an earlier one
            with contextlib.suppress(OSError, ValueError):  # no checkpoint, or half of one
                note = json.loads((path / ABOUT_FILE).read_text(encoding="utf-8"))
                found[path] = note.get("written_at", 0.0)  # 0.1 wrote no time
    return max(found, key=lambda path: found[path], default=None)


def put_in_place(new: Path, path: Path) -> None:
    """Renames a folder, in place of one that may be there, which is deleted then.

    Folders cannot be exchanged in one step everywhere: if power fails between the two renames,
    the old one is left as ``.NAME.old``, where `Checkpoint.open` finds it.
    """
    old = _old(path)
    if path.exists():
        shutil.rmtree(old, ignore_errors=True)
        path.rename(old)
    new.rename(path)
    sync_one(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def _old(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def _sync(folder: Path) -> None:
    """Has all of a folder written to the disk, so that a power failure leaves no empty files."""
    for file in folder.rglob("*"):
        sync_one(file)
    sync_one(folder)


def sync_one(path: Path) -> None:
    """Has a file, or what a folder lists, written to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def note_of(plan: ServerPlan) -> dict[str, Any]:
    """Returns what the note of a server's checkpoint says of the server."""
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
        **{part: getattr(plan, part) for part in _OF_PLAN},
        "late_members": plan.late_members,
        "settings": plan.settings,
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
    def open(cls, path: Path, *, has_networks: bool = True) -> Checkpoint:
        """Finds a checkpoint, without loading RLlib's files.

        Args:
            path: its folder.
            has_networks: False for that of a server that does not learn.

        Raises:
            AlgorithmProblem: there is none, it is damaged, or another version of muxrl wrote it.
        """
        path = path.expanduser().resolve()  # a link such as `last` may move
        if not path.exists() and _old(path).is_dir():
            path = _old(path)
        if not path.is_dir():
            raise AlgorithmProblem(f"there is no checkpoint at {str(path)!r}: no such folder")
        about: Any = {}
        with contextlib.suppress(FileNotFoundError):
            try:
                about = json.loads((path / ABOUT_FILE).read_text(encoding="utf-8"))
            except ValueError as error:
                raise AlgorithmProblem(
                    f"the {ABOUT_FILE} of checkpoint {str(path)!r} is not JSON ({error}); was it "
                    "edited?"
                ) from error
        found = cls(path, about)
        if has_networks:
            found.check_networks()
        if about and (problem := format_problem(about.get("format"), _FORMAT)):
            raise AlgorithmProblem(f"the {ABOUT_FILE} of checkpoint {str(path)!r} {problem}")
        # A replay may be large, and policies do not need it.
        if damage := damage_of_server(path, but=(REPLAY_FILE,)):
            raise AlgorithmProblem(damage)
        return found

    def check_networks(self) -> None:
        """Checks that it is of policies that learn.

        Raises:
            AlgorithmProblem: it is not; the sentence names checkpoints inside of it.
        """
        if (self.path / _MODULES).is_dir() or self.about.get("is_of_trainers"):
            return
        inside = sorted(str(p.relative_to(self.path)) for p in _checkpoints_below(self.path))
        shown = ", ".join(map(repr, inside[:_MOST_LISTED]))
        raise AlgorithmProblem(
            f"{str(self.path)!r} is no RLlib checkpoint: it has no folder {str(_MODULES)!r}"
            + (f"; did you mean one of those in it: {shown}?" if inside else "")
        )

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

    # --- going on -----------------------------------------------------------------------

    def check_resumable(self, plan: ServerPlan) -> None:
        """Checks that a server can go on from it.

        Raises:
            AlgorithmProblem: it is no whole checkpoint of this version, or of another server.
        """
        if not self.about:
            raise AlgorithmProblem(
                "it was written by RLlib without muxrl, without counts, replay and random numbers; "
                "take its policies only, with initialize_from"
            )
        ours = json.loads(json.dumps(note_of(plan)))
        differences = [
            difference
            for part in _MUST_BE_SAME
            for difference in _differences(part, self.about.get(part), ours[part])
        ]
        if differences:
            shown = "; ".join(differences[:_MOST_LISTED])
            raise AlgorithmProblem(
                f"it is of another server: {shown}; go on with the config that it was trained "
                "with, or take its policies only, with initialize_from"
            )

    def check_same_policies(self, plan: ServerPlan) -> None:
        """Checks that a server's policies may begin with its weights.

        A checkpoint of plain RLlib does not say what its policies observed: their networks are
        compared when they are loaded.

        Raises:
            AlgorithmProblem: another algorithm trained it, or a policy has other agents.
        """
        if not self.about:
            return
        if str(self.algorithm).lower() != plan.algorithm.lower():
            raise AlgorithmProblem(f"it is of {self.algorithm}, and the server is {plan.algorithm}")
        ours_now = note_of(plan)
        for part in READ_ALIKE:
            if self.about[part] != ours_now[part]:
                raise AlgorithmProblem(
                    f"its networks were trained with {part}: {_shown(self.about[part])}, and the "
                    f"server has {_shown(ours_now[part])}; give the server the same"
                )
        theirs = _spaces_by_policy(self.about["agents"])
        for policy_id, ours in _spaces_by_policy(
            json.loads(json.dumps(ours_now["agents"]))
        ).items():
            source = plan.initialize_policies.get(policy_id, policy_id)
            if source not in theirs:
                raise AlgorithmProblem(
                    f"it has no policy {source!r}, only {', '.join(map(repr, sorted(theirs)))}"
                )
            if unknown := [spaces for spaces in ours if spaces not in theirs[source]]:
                raise AlgorithmProblem(
                    f"its policy {source!r} has other spaces: {_shown(theirs[source][0])} "
                    f"there, {_shown(unknown[0])} here"
                )

    def settings_as_begun(self, plan: ServerPlan, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the plan's settings, and those whose default was another at that time.

        Args:
            plan: of the server that goes on.
            defaults: every setting of its algorithm, with today's default.
        """
        now, then = json.loads(json.dumps(defaults)), self.about["defaults"]
        kept = {name: then[name] for name in now if name in then and then[name] != now[name]}
        return {**kept, **plan.settings}

    def find_changed_settings(self, plan: ServerPlan) -> dict[str, str]:
        """Returns how a server's training settings differ, by name, as "lr: 0.1, was 0.2".

        The plan's `settings` are whole with those of `settings_as_begun`.
        """
        at_first, then = self.about["defaults"], self.about["settings"]
        now = json.loads(json.dumps(plan.settings))
        return {
            name: f"{name}: {_shown(now.get(name, 'the default'))}, "
            f"was {_shown(then.get(name, 'the default'))}"
            for name in sorted(then.keys() | now.keys())
            if {**at_first, **then}.get(name) != {**at_first, **now}.get(name)
        }

    def read_state(self) -> dict[str, Any]:
        """Returns what RLlib leaves out.

        Raises:
            ValueError: the file is broken.
            OSError: it cannot be read.
        """
        state: dict[str, Any] = read_state(self.path / STATE_FILE)
        return state

    def read_normalization(self) -> dict[str, Any]:
        """Returns the running statistics, empty where nothing was normalised; see `Normalization`.

        Raises:
            ValueError: the file is broken.
            OSError: it cannot be read.
        """
        nothing: dict[str, Any] = {"observations": {"policies": {}, "states": {}}, "rewards": {}}
        if not (self.path / STATE_FILE).exists():
            return nothing
        found: dict[str, Any] = self.read_state().get("normalization", nothing)
        return found

    def read_replay(self) -> dict[str, Any] | None:
        """Returns the replay; None: it was not written.

        Raises:
            ValueError: the file is broken.
            OSError: it cannot be read.
        """
        if not (self.path / REPLAY_FILE).exists():
            return None
        replay: dict[str, Any] = read_state(self.path / REPLAY_FILE)
        return replay

    def read_networks(self) -> dict[str, dict[str, Any]]:
        """Returns the parameters of each policy's module, critics and target networks included.

        Raises:
            AlgorithmProblem: a file is broken.
        """
        networks = {}
        for path in (self.path / _MODULES).glob("*/module_state.pkl"):
            try:
                networks[path.parent.name] = pickle.loads(path.read_bytes())
            except Exception as error:  # of a broken pickle, anything
                raise AlgorithmProblem(
                    f"{str(path)!r} cannot be loaded: {type(error).__name__}: {error}"
                ) from error
        return networks

    def load_modules(self, *, only_acting: bool = True) -> dict[str, RLModule]:
        """Builds the modules, for acting: without critics, mixers and targets.

        A module may have another ``model_config`` for this, its `frozen_model_config`. Their files
        are pickles, whose code is run.

        Args:
            only_acting: False: as they were saved, with all that they have.

        Raises:
            AlgorithmProblem: a file is missing or broken, or a class cannot be imported.
        """
        from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule

        modules: dict[str, RLModule] = {}
        try:
            whole = MultiRLModule.from_checkpoint(self.path / _MODULES)
            for name, module in whole.items():
                spec = acting_spec(module)
                if not only_acting:
                    modules[name] = module
                elif not spec.learner_only:
                    modules[name] = spec.build()
                    modules[name].set_state(module.get_state(inference_only=True))
        except Exception as error:  # pickles of foreign code may raise anything
            raise AlgorithmProblem(
                f"checkpoint {str(self.path)!r} cannot be loaded: {type(error).__name__}: {error}"
            ) from error
        return modules


def acting_spec(module: RLModule) -> RLModuleSpec:
    """Returns what a module's equal is built from that only acts."""
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec

    spec = RLModuleSpec.from_module(module)
    if not spec.learner_only:
        spec.inference_only = True
        config = getattr(module, "frozen_model_config", None)
        spec.model_config = spec.model_config if config is None else config
    return spec


def _differences(what: str, theirs: Any, ours: Any) -> list[str]:
    """Returns what differs, by its path, as "agents.a.policy is x there and y here"."""
    if theirs == ours:
        return []
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return [
            difference
            for key in dict.fromkeys((*theirs, *ours))
            for difference in _differences(
                f"{what}.{key}", theirs.get(key, "absent"), ours.get(key, "absent")
            )
        ]
    return [f"{what} is {_shown(theirs)} there and {_shown(ours)} here"]


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "..."


def _spaces_by_policy(agents: Mapping[str, Mapping[str, Any]]) -> dict[str, list[Any]]:
    spaces: dict[str, list[Any]] = {}
    for agent in agents.values():
        seen = [agent["observation_space"], agent["action_space"]]
        if seen not in spaces.setdefault(agent["policy"], []):
            spaces[agent["policy"]].append(seen)
    return spaces


def _checkpoints_below(path: Path) -> list[Path]:
    """Returns the checkpoints in a run's folder, in its `checkpoints`, or in one server's."""
    candidates = (p for depth in ("*", "*/*", "*/*/*") for p in path.glob(depth))
    return [p for p in candidates if (p / _MODULES).is_dir()]
