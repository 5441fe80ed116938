"""Finds the checkpoint of `servers.SERVER.initialize_from`, and checks that its policies fit.

Only `muxrl.json` is read; the server that loads the weights compares them once more.
"""

from __future__ import annotations

from pathlib import Path

from muxrl.orchestrator.storage.checkpoints import LAST, CheckpointFolder
from muxrl.servers.checkpoints.checkpoint import ABOUT_FILE, Checkpoint, policy_mismatches
from muxrl.servers.config import ServerPlan
from muxrl.servers.setting_values import AlgorithmProblem


def find_initial_weights(given: str, plan: ServerPlan) -> tuple[str, list[str]]:
    """Returns the absolute path of the checkpoint, and a sentence for each thing that is wrong.

    Args:
        given: the directory of a run, or the folder of a server's checkpoint.
        plan: of the server that is to begin with these weights.
    """
    server_id = plan.server_id
    path = Path(given).expanduser()
    run = CheckpointFolder(path / "checkpoints")
    if run.path.is_dir():
        found = run.of_server(server_id)
        if found is None:
            others = sorted(p.parent for p in run.path.glob(f"{LAST}/*/{ABOUT_FILE}"))
            hint = f"; give the folder of another one, such as {others[0]}" if others else ""
            return "", [f"run {given!r} has no checkpoint {LAST!r} of a server {server_id!r}{hint}"]
        path = found
    try:
        checkpoint = Checkpoint.open(path)
    except AlgorithmProblem as problem:
        return "", [str(problem)]
    return str(checkpoint.path), list(policy_mismatches(repr(given), checkpoint.about, plan))
