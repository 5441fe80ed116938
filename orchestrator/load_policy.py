"""`muxrl.load_policy`: a run's policies as functions from observation to action."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from muxrl.client.onnx_policy import OnnxPolicy, load_onnx
from muxrl.orchestrator.storage.checkpoints import LAST

if TYPE_CHECKING:
    from muxrl.servers.fixed_policies.loaded_policies import LoadedPolicy


def load_policy(path: str | Path) -> dict[str, LoadedPolicy | OnnxPolicy]:
    """Returns a policy for each agent, ``policies[agent_id](observation)``, which acts greedily.

    Recurrent policies, those that read their last action and stacked frames remember an episode:
    call their ``reset()`` at its start.

    Args:
        path: a run's directory, whose last checkpoint is taken; the folder of a checkpoint, of all
            servers or of one; or an ONNX file, or a folder of such. A checkpoint's files are
            pickles, whose code is run: load only what you trust.

    Raises:
        FileNotFoundError: there is neither a checkpoint nor an ONNX file.
        AlgorithmProblem: a checkpoint cannot be read.
    """
    from muxrl.servers.checkpoints.checkpoint import ABOUT_FILE
    from muxrl.servers.fixed_policies.loaded_policies import load_checkpoint

    path = Path(path).expanduser()
    last = path / "checkpoints" / LAST
    whole = last if last.is_dir() else path
    checkpoints = sorted(
        note.parent for note in (*whole.glob(ABOUT_FILE), *whole.glob(f"*/{ABOUT_FILE}"))
    )
    policies: dict[str, LoadedPolicy | OnnxPolicy] = {}
    for checkpoint in checkpoints:
        policies |= load_checkpoint(checkpoint)
    if not checkpoints:
        policies |= load_onnx(path)
    if not policies:
        raise FileNotFoundError(
            f"{str(path)!r} is no run with a checkpoint, no checkpoint, and has no ONNX files of "
            "muxrl export"
        )
    return policies
