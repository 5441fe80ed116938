"""`muxrl.load_policy`: a run's policies as functions from observation to action."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from muxrl.client.onnx_policy import OnnxPolicy, load_onnx
from muxrl.orchestrator.storage.checkpoints import LAST

if TYPE_CHECKING:
    from muxrl.servers.fixed_policies.loaded_policies import LoadedPolicy


class Policies(dict[str, "LoadedPolicy | OnnxPolicy"]):
    """Policies by agent.

    Attributes:
        left_out: by agent that has none, why; `KeyError` says it, too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.left_out: dict[str, str] = {}

    def __missing__(self, agent_id: str) -> Any:
        reason = self.left_out.get(agent_id, f"there are policies of {', '.join(self)}")
        raise KeyError(f"agent {agent_id!r} has no policy here: {reason}")


def load_policy(path: str | Path) -> Policies:
    """Returns a policy for each agent, ``policies[agent_id](observation)``, which acts greedily.

    A POOL, RANDOM or SCRIPTED server has none, nor has a trainer that acts for a team at once:
    their agents are left out.

    Recurrent policies, those that read their last action and stacked frames remember an episode:
    call their ``reset()`` at its start.

    Args:
        path: a run's directory, whose last checkpoint is taken; the folder of a checkpoint, of all
            servers or of one; or an ONNX file, or a folder of such. What RLLIB_* have
            counted is a pickle, whose code is run: load only what you trust.

    Raises:
        FileNotFoundError: there is neither a checkpoint nor an ONNX file.
        AlgorithmProblem: a checkpoint cannot be read, or nobody has a policy.
    """
    from muxrl.servers.checkpoints.checkpoint import ABOUT_FILE
    from muxrl.servers.fixed_policies.loaded_policies import NoFunction, load_checkpoint
    from muxrl.servers.setting_values import AlgorithmProblem

    path = Path(path).expanduser()
    last = path / "checkpoints" / LAST
    whole = last if last.is_dir() else path
    checkpoints = sorted(
        note.parent for note in (*whole.glob(ABOUT_FILE), *whole.glob(f"*/{ABOUT_FILE}"))
    )
    policies = Policies()
    for checkpoint in checkpoints:
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
            f"{str(path)!r} is no run with a checkpoint, no checkpoint, and has no ONNX files of "
            "muxrl export"
        )
    return policies
