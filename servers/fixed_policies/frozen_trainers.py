"""The policies of a checkpoint whose trainers are people's own; and which kind a checkpoint has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from muxrl.servers.checkpoints.checkpoint import Checkpoint
from muxrl.servers.config import ServerPlan
from muxrl.servers.fixed_policies.frozen import FrozenModules, plan_of
from muxrl.servers.gymnasium_spaces import spaces_of
from muxrl.servers.setting_values import AlgorithmProblem
from muxrl.servers.trainers.acting import Actors, TrainerFailed
from muxrl.servers.trainers.entry import TrainerEntry
from muxrl.servers.trainers.lookup import find_trainer


class FrozenTrainers(FrozenModules):
    """Trainers that are not asked to learn; see `FrozenModules`.

    Args:
        entry: the class that learned.
    """

    def __init__(
        self, entry: TrainerEntry, checkpoint: Checkpoint, names: Mapping[str, str]
    ) -> None:
        self._entry = entry
        super().__init__(checkpoint, names, may_run_code=True)
        self.seating = entry.seating
        seats = self.seating.make_seats(plan_of(checkpoint.about)).values()
        self._spaces = {seat.policy_id: spaces_of(seat) for seat in seats}

    def make_inference(self, plan: ServerPlan) -> Actors:
        about = self._checkpoint.about
        seats = self.seating.make_seats(plan, self.observing(plan))
        begun = replace(plan, settings=about["settings"], state_size=about["state_size"])
        sizes = about.get("state_sizes", {})
        of_policies = {p: sizes[name] for p, name in self.names_of(plan).items() if name in sizes}
        actors = self._entry.make_actors(begun, seats, of_policies)
        actors.is_learned_from = False
        try:
            saved, names = self._checkpoint.read_state(), self.names_of(plan)
            if "trainers" in saved:
                actors.set_state({p: saved["trainers"][name] for p, name in names.items()})
            else:  # live
                actors.load({p: saved["weights"][name] for p, name in names.items()}, 0)
        except (OSError, KeyError, ValueError, TrainerFailed) as error:
            raise AlgorithmProblem(
                f"checkpoint {str(self._checkpoint.path)!r} cannot be loaded: "
                f"{type(error).__name__}: {error}"
            ) from error
        actors.num_env_steps_sampled = self._checkpoint.env_steps
        return actors


def open_policies(
    checkpoint: Checkpoint, names: Mapping[str, str], *, may_run_code: bool
) -> FrozenModules:
    """Returns the policies of a checkpoint, RLlib's or of people's own trainers.

    Args:
        checkpoint, names, may_run_code: see `FrozenModules`.

    Raises:
        AlgorithmProblem: as `FrozenModules`; or the trainer's class cannot be imported.
    """
    # Of a process of its own the note names the class.
    name = checkpoint.about.get("trainer") or checkpoint.algorithm or ""
    try:
        entry = find_trainer(name)
    except AlgorithmProblem as error:
        raise AlgorithmProblem(f"checkpoint {str(checkpoint.path)!r}: {error}") from error
    if entry is not None:
        return FrozenTrainers(entry, checkpoint, names)
    return FrozenModules(checkpoint, names, may_run_code=may_run_code)
