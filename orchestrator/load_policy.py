"""`muxrl.load_policy`: loads a run's policies as functions from observation to action."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from muxrl.client.onnx_policy import OnnxPolicy, load_onnx
from muxrl.orchestrator.storage.checkpoints import LAST

if TYPE_CHECKING:
    from muxrl.servers.fixed_policies.loaded_policies import LoadedPolicy, MeanPolicy


class Policies(dict[str, "LoadedPolicy | MeanPolicy | OnnxPolicy"]):
    """Policies by agent.

    Attributes:
        left_out: by agent without a policy: the reason, which `KeyError` gives, too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.left_out: dict[str, str] = {}

    def __missing__(self, agent_id: str) -> Any:
        reason = self.left_out.get(agent_id, f"only {', '.join(self)} have one")
        raise KeyError(f"agent {agent_id!r} has no policy here: {reason}")


def load_policy(
    path: str | Path, *, mean_of: int | Literal["all"] | None = None, seed: int = 0
) -> Policies:
    """Returns a policy for each agent, ``policies[agent_id](observation)``, which acts greedily.

    The agents of a POOL, RANDOM or SCRIPTED server, and of a trainer that acts for a whole team at
    once, have no such policy and are left out. To load the policies of a shadow, give its folder
    ``RUN/checkpoints/last/NAME``.

    Policies that are recurrent, read their last action or stack frames remember an episode: call
    ``reset()`` at its start.

    Args:
        path: a run's directory, whose last checkpoint is loaded; the folder of a checkpoint, of all
            servers or of one; an ONNX file, or a folder of them. A checkpoint of RLLIB_* contains a
            pickle, whose code is run: load only what you trust.
        mean_of: the number of newest snapshots to average, or "all": each agent of the newest
            snapshot then has a `MeanPolicy` of its policies in them. `path` is a run, or a folder
            with one folder for each snapshot, named by its env steps.
        seed: of the draws from a `MeanPolicy`'s members.

    Raises:
        FileNotFoundError: there is neither a checkpoint nor an ONNX file, or no snapshot.
        ValueError: `mean_of` is neither "all" nor a number above 0.
        AlgorithmProblem: a checkpoint cannot be read, or no agent has a policy.
    """
    from muxrl.servers.checkpoints.checkpoint import ABOUT_FILE, Checkpoint
    from muxrl.servers.fixed_policies.loaded_policies import NoFunction, load_checkpoint
    from muxrl.servers.setting_values import AlgorithmProblem

    path = Path(path).expanduser()
    if mean_of is not None:
        return _load_mean(path, mean_of, seed)
    last = path / "checkpoints" / LAST
    whole = last if last.is_dir() else path
    checkpoints = sorted(
        note.parent for note in (*whole.glob(ABOUT_FILE), *whole.glob(f"*/{ABOUT_FILE}"))
    )
    policies = Policies()
    for checkpoint in checkpoints:
        if checkpoint != whole and Checkpoint.open(checkpoint).about.get("shadow"):
            continue
        try:
            policies.update(load_checkpoint(checkpoint))
        except NoFunction as problem:
            policies.left_out |= dict.fromkeys(problem.agents, str(problem))
    if not checkpoints:
        policies.update(load_onnx(path))
    if policies.left_out and not policies:
        reasons = "; ".join(dict.fromkeys(policies.left_out.values()))
        raise AlgorithmProblem(f"{str(path)!r} has no policy to load: {reasons}")
    if not policies:
        raise FileNotFoundError(
            f"{str(path)!r} is neither a run with a checkpoint, nor a checkpoint, nor an ONNX file "
            "or a folder of ONNX files from muxrl export"
        )
    return policies


def _load_mean(path: Path, mean_of: int | Literal["all"], seed: int) -> Policies:
    from muxrl.servers.fixed_policies.loaded_policies import MeanPolicy

    if mean_of != "all" and not (isinstance(mean_of, int) and mean_of >= 1):
        raise ValueError(f"mean_of is {mean_of!r}; expected at least 1 snapshot, or 'all'")
    whole = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    places = sorted(int(place.name) for place in whole.glob("*") if place.name.isdecimal())
    if not places:
        raise FileNotFoundError(
            f"{str(path)!r} has no snapshot; checkpoint.keep_every_env_steps makes a run keep them"
        )
    places = places if mean_of == "all" else places[-mean_of:]
    loaded = [load_policy(whole / str(place)) for place in places]
    policies = Policies()
    policies.left_out = loaded[-1].left_out
    for agent_id in loaded[-1]:
        members: list[Any] = [one[agent_id] for one in loaded if agent_id in one]
        policies[agent_id] = MeanPolicy(members, seed)
    return policies
