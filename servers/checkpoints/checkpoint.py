"""Checkpoints: what a server has learned and needs to continue, with a note that describes it.

All of it is data: plain values in JSON, and arrays. The note, ``muxrl.json``, says how the server
used its policies, so that they can act again without its config. The note is written last, so that
a checkpoint with a note is complete.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from muxrl.protocol.spaces import Space
from muxrl.protocol.suggestions import listed
from muxrl.servers.checkpoints.formats import format_problem
from muxrl.servers.checkpoints.integrity import damage_of_server
from muxrl.servers.checkpoints.state_file import read_state, write_state
from muxrl.servers.config import ServerPlan
from muxrl.servers.setting_values import AlgorithmProblem

ABOUT_FILE = "muxrl.json"
STATE_FILE = "muxrl_state.npz"
REPLAY_FILE = "muxrl_replay.npz"
_FORMAT = 1
_OF_RLLIB = "learner_group"
"""A folder in RLlib's checkpoints, which muxrl also wrote before format 1."""
_BEFORE = (2, 3)
"""Formats of that time, which must not be used again."""
_HALF = ".half"
SET_ASIDE = ".unused"
"""Suffix of a checkpoint from which its run does not continue, as an earlier one was chosen."""
_MOST_LISTED = 8
_LONGEST_SHOWN = 200
READ_ALIKE = ("scale_observations", "normalize_observations", "frame_stack")
"""Keys of the note, and of a plan, that say how networks read observations."""
_OF_PLAN = (
    "state_size",
    "team_reward",
    "use_global_state",
    *READ_ALIKE,
    "normalize_rewards",
    "model",
    "rl_module",
)
"""Keys of the note that a plan has under the same name."""
_MUST_BE_SAME = ("algorithm", "agents", "groups", *_OF_PLAN)
"""Keys of the note that must be equal for a server to continue from a checkpoint."""


def save_checkpoint(
    plan: ServerPlan,
    path: Path,
    counts: Mapping[str, Any],
    state: Mapping[str, Any],
    *,
    replay: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> None:
    """Writes a complete checkpoint, or nothing. Training must not continue meanwhile.

    Args:
        plan: the server's; its token is not written.
        path: a folder, which is replaced if it exists.
        counts: the progress of training, such as ``env_steps``.
        state: what the server needs to continue, as plain values and arrays.
        replay: likewise; None if there is none, or it is not to be saved.
        defaults: every setting of its algorithm with its default, which completes
            `plan.settings`; None if the algorithm does not learn.

    Raises:
        OSError: it cannot be written; an earlier checkpoint in `path` is still there.
    """
    path = path.absolute()
    if path.is_dir() and any(path.iterdir()) and not (path / ABOUT_FILE).exists():
        raise FileExistsError(f"{path} exists and is not a checkpoint, so it is not replaced")
    half = path.with_name(f".{path.name}{_HALF}")
    shutil.rmtree(half, ignore_errors=True)  # left by a process that was killed
    half.mkdir(parents=True)
    try:
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
                continue  # unfinished, or its run continues from an earlier one
            with contextlib.suppress(OSError, ValueError, KeyError):  # no whole checkpoint
                note = json.loads((path / ABOUT_FILE).read_text(encoding="utf-8"))
                found[path] = note["written_at"]
    return max(found, key=lambda path: found[path], default=None)


def put_in_place(new: Path, path: Path) -> None:
    """Renames a folder; an earlier folder of the new name is deleted afterwards.

    Not every system can exchange folders in one step: if power fails between the two renames, the
    earlier folder remains as ``.NAME.old``, where `Checkpoint.open` finds it.
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
    """Writes everything in a folder to the disk, so that a power failure leaves no empty files."""
    for file in folder.rglob("*"):
        sync_one(file)
    sync_one(folder)


def sync_one(path: Path) -> None:
    """Writes a file, or the list of a folder's files, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def note_of(plan: ServerPlan) -> dict[str, Any]:
    """Returns the part of a checkpoint's note that describes its server."""
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
        "shadow": plan.shadow,
        "settings": plan.settings,
        "seed": plan.seed,
    }


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk. Make one with `open`.

    Attributes:
        path: absolute path of its folder.
        about: the content of ``muxrl.json``.
    """

    path: Path
    about: Mapping[str, Any]

    @classmethod
    def open(cls, path: Path) -> Checkpoint:
        """Finds a checkpoint in its folder.

        Raises:
            AlgorithmProblem: there is no checkpoint, it is damaged, or another version of muxrl, or
                plain RLlib, has written it.
        """
        path = path.expanduser().resolve()  # a link such as `last` may move
        if not path.exists() and _old(path).is_dir():
            path = _old(path)
        if not path.is_dir():
            raise AlgorithmProblem(f"there is no checkpoint at {str(path)!r}: no such folder")
        about: Any = None
        with contextlib.suppress(FileNotFoundError):
            try:
                about = json.loads((path / ABOUT_FILE).read_text(encoding="utf-8"))
            except ValueError as error:
                raise AlgorithmProblem(
                    f"the {ABOUT_FILE} of checkpoint {str(path)!r} is not JSON ({error}); was it "
                    "edited?"
                ) from error
        if about is None:
            raise AlgorithmProblem(_no_checkpoint(path))
        if (path / _OF_RLLIB).is_dir() or about.get("format") in _BEFORE:
            raise AlgorithmProblem(
                f"checkpoint {str(path)!r} was written by an older muxrl, as files of RLlib, which "
                "this one does not read: train the policies again, or export them with the older "
                "one"
            )
        if problem := format_problem(about.get("format"), _FORMAT):
            raise AlgorithmProblem(f"the {ABOUT_FILE} of checkpoint {str(path)!r} {problem}")
        # The replay is left out: it may be large, and policies do not need it.
        if damage := damage_of_server(path, but=(REPLAY_FILE,)):
            raise AlgorithmProblem(damage)
        return cls(path, about)

    @property
    def algorithm(self) -> str:
        """Name of its server's algorithm."""
        return str(self.about["algorithm"])

    @property
    def env_steps(self) -> int:
        """Env steps of training so far, which exploration schedules depend on."""
        return int(self.about["env_steps"])

    # --- resuming -----------------------------------------------------------------------

    def check_resumable(self, plan: ServerPlan) -> None:
        """Checks that a server can continue from it.

        Raises:
            AlgorithmProblem: it is of another server; the message says what differs.
        """
        ours = json.loads(json.dumps(note_of(plan)))
        differences = [
            difference
            for part in _MUST_BE_SAME
            for difference in _differences(part, self.about.get(part), ours[part])
        ]
        if differences:
            shown = "; ".join(differences[:_MOST_LISTED])
            raise AlgorithmProblem(
                f"it is the checkpoint of another server: {shown}; resume with the config that it "
                "was trained with, or take only its policies, with initialize_from"
            )

    def check_same_policies(self, plan: ServerPlan) -> None:
        """Checks that a server's policies may begin with its weights.

        Networks are not compared here, but when they are loaded.

        Raises:
            AlgorithmProblem: another algorithm trained it, or a policy has other agents.
        """
        for problem in policy_mismatches("it", self.about, plan):
            raise AlgorithmProblem(problem)

    def settings_as_begun(self, plan: ServerPlan, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the plan's settings, with the old values of defaults that have changed since.

        Args:
            plan: of the server that continues.
            defaults: every setting of its algorithm, with today's default.
        """
        now, then = json.loads(json.dumps(defaults)), self.about["defaults"]
        kept = {name: then[name] for name in now if name in then and then[name] != now[name]}
        return {**kept, **plan.settings}

    def find_changed_settings(self, plan: ServerPlan) -> dict[str, str]:
        """Returns how a server's training settings differ, by name: "lr: 0.1, was 0.2".

        The plan's `settings` must include those of `settings_as_begun`.
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
        """Returns what the server needs to continue.

        Raises:
            ValueError: the file is broken.
            OSError: the file cannot be read.
        """
        return read_state(self.path / STATE_FILE)

    def read_normalization(self) -> dict[str, Any]:
        """Returns the running statistics; see `Normalization`.

        Raises:
            ValueError: the file is broken.
            OSError: the file cannot be read.
        """
        return self.read_state()["normalization"]

    def read_replay(self) -> dict[str, Any] | None:
        """Returns the replay; None: it was not saved.

        Raises:
            ValueError: the file is broken.
            OSError: the file cannot be read.
        """
        if not (self.path / REPLAY_FILE).exists():
            return None
        return read_state(self.path / REPLAY_FILE)


def _differences(what: str, theirs: Any, ours: Any) -> list[str]:
    """Returns the differences with their paths, such as "lr is x in the checkpoint, y in the "
    "config"."""
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
    return [f"{what} is {_shown(theirs)} in the checkpoint, {_shown(ours)} in the config"]


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "..."


def policy_mismatches(what: str, about: Mapping[str, Any], plan: ServerPlan) -> Iterator[str]:
    """Yields a sentence for each reason why a server's policies cannot begin with a checkpoint's.

    Reasons are another algorithm, another way to read observations, and policies that are missing
    or have other spaces.

    Args:
        what: the checkpoint's name in the sentences.
        about: the checkpoint's note.
        plan: of the server that is to begin with its weights.
    """
    if str(about.get("algorithm")).lower() != plan.algorithm.lower():
        yield (
            f"{what} was trained with {about.get('algorithm')}, but the server's algorithm is "
            f"{plan.algorithm}"
        )
        return
    for part in READ_ALIKE:
        if about[part] != getattr(plan, part):
            yield (
                f"{what} was trained with {part}: {json.dumps(about[part])}, but the server has "
                f"{json.dumps(getattr(plan, part))}; give the server the same"
            )
    saved: dict[str, list[Mapping[str, Any]]] = {}
    for one in about["agents"].values():
        saved.setdefault(one["policy"], []).append(one)
    if unknown := plan.initialize_policies.keys() - {a.policy_id for a in plan.agents.values()}:
        names = listed(sorted(unknown))
        yield f"initialize_policies names {names}, but this server has no such policy"
    refused = set()
    for agent_id, agent in plan.agents.items():
        source = plan.initialize_policies.get(agent.policy_id, agent.policy_id)
        if agent.policy_id in refused:
            continue
        if source not in saved:
            refused.add(agent.policy_id)
            yield (
                f"{what} has no policy {source!r}, only {listed(saved)}; name the one that "
                f"{agent.policy_id!r} begins with, as in initialize_policies: "
                f"{{{agent.policy_id}: {min(saved)}}}"
            )
            continue
        for kind in ("observation_space", "action_space"):
            ours = json.loads(msgspec.json.encode(getattr(agent, kind)))
            if not any(_are_same(ours, one[kind]) for one in saved[source]):
                refused.add(agent.policy_id)
                yield (
                    f"policy {agent.policy_id!r} has the {kind.replace('_', ' ')} "
                    f"{_shown(saved[source][0][kind])} in {what}, but {agent_id!r} has "
                    f"{_shown(ours)}; is it the same task?"
                )


def _are_same(ours: Any, theirs: Any) -> bool:
    """Whether two spaces are equal; one may state a default that the other leaves out."""
    with contextlib.suppress(msgspec.ValidationError):
        return bool(msgspec.convert(ours, Space) == msgspec.convert(theirs, Space))
    return False


def _no_checkpoint(path: Path) -> str:
    """Returns why a folder without a note is no checkpoint; names the checkpoints inside a run's
    folder, its `checkpoints`, or a server's folder."""
    if (path / _OF_RLLIB).is_dir():
        return (
            f"checkpoint {str(path)!r} has no {ABOUT_FILE}, which says what its policies observe "
            "and do: plain RLlib wrote it; act with it in a script (SCRIPTED), or train the "
            "policies on a server of muxrl"
        )
    notes = (note for depth in ("*", "*/*", "*/*/*") for note in path.glob(f"{depth}/{ABOUT_FILE}"))
    inside = sorted(str(note.parent.relative_to(path)) for note in notes)
    shown = ", ".join(map(repr, inside[:_MOST_LISTED]))
    return f"{str(path)!r} is no checkpoint: it has no {ABOUT_FILE}" + (
        f"; did you mean one of the checkpoints inside: {shown}?" if inside else ""
    )
