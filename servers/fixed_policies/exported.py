"""Exports a server's checkpoint as ONNX files, one for each policy; each is verified first."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import msgspec

from muxrl.servers.checkpoints.checkpoint import Checkpoint
from muxrl.servers.config import ServerPlan
from muxrl.servers.export.graph import PolicyGraph
from muxrl.servers.export.network import CannotExport
from muxrl.servers.export.onnx_file import OnnxPolicy, to_onnx
from muxrl.servers.export.verify import TOLERANCE, Differs, Verification
from muxrl.servers.fixed_policies.frozen import open_policies, plan_of


@dataclass(frozen=True)
class ExportedPolicy:
    """The file of a policy.

    Attributes:
        path: of the file.
        policy_id: the policy.
        inputs: each as ``name [shape] dtype``, without the batch.
        outputs: names of the outputs.
        num_verified: number of observations on which file and policy were compared.
    """

    path: Path
    policy_id: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    num_verified: int


def export_checkpoint(
    checkpoint: Path, folder: Path, *, tolerance: float = TOLERANCE
) -> Iterator[ExportedPolicy]:
    """Writes ``POLICY.onnx`` for each policy of a checkpoint, and yields it.

    RLlib's counts in a checkpoint are a pickle, whose code runs: load only what you trust.

    Args:
        checkpoint: of one server.
        folder: for the files; files of the same name are replaced, or deleted.
        tolerance: largest allowed difference of scores from the server's; see `TOLERANCE`.

    Raises:
        AlgorithmProblem: the checkpoint cannot be read.
        CannotExport: a policy cannot become a file.
        Differs: a file does not act as the server does.
        OSError: a file cannot be written.
    """
    found = Checkpoint.open(checkpoint)
    frozen = open_policies(found, {})
    plan = plan_of(found.about)
    acting = frozen.make_inference(plan)
    observing = frozen.observing(plan)
    seats = frozen.make_seats(plan, observing)
    for policy_id in acting.learners:
        path = folder / f"{policy_id}.onnx"
        path.unlink(missing_ok=True)
        what = f"policy {policy_id!r} ({frozen.name})"
        try:
            trainer, spec = acting.learners[policy_id], acting.specs[policy_id]
            graph = PolicyGraph(trainer, spec, plan, policy_id, frozen.seating, observing)
            content = to_onnx(graph, _about(found, plan, graph, policy_id, tolerance))
            ours = {i: seat for i, seat in seats.items() if seat.policy_id == policy_id}
            verification = Verification(plan, ours, graph, acting, tolerance=tolerance)
            num_verified = verification.check(OnnxPolicy(content))
        except CannotExport as error:
            raise CannotExport(f"{what} cannot be exported: {error}") from error
        except Differs as error:
            raise Differs(
                f"{what} was not exported: in ONNX Runtime it does not act as the server does: "
                f"{error}; if the difference is tiny, it is the rounding of large observations or "
                "weights, which a larger --tolerance allows; else try another version of torch or "
                "onnxscript"
            ) from error
        folder.mkdir(parents=True, exist_ok=True)
        half = path.with_suffix(".half")
        try:
            half.write_bytes(content)
            half.replace(path)
        finally:
            half.unlink(missing_ok=True)
        inputs = tuple(f"{port.name} {list(port.shape)} {port.dtype}" for port in graph.inputs)
        yield ExportedPolicy(path, policy_id, inputs, tuple(graph.outputs), num_verified)


def _about(
    checkpoint: Checkpoint,
    plan: ServerPlan,
    graph: PolicyGraph,
    policy_id: str,
    tolerance: float,
) -> dict[str, str]:
    """Returns the metadata of a file; all values are text, in JSON if they have several parts."""
    version = "unknown"
    with contextlib.suppress(metadata.PackageNotFoundError):
        version = metadata.version("muxrl")
    agents = {
        agent_id: {
            "observation_space": msgspec.to_builtins(plan.agents[agent_id].observation_space),
            "action_space": msgspec.to_builtins(plan.agents[agent_id].action_space),
            **({} if number is None else {"agent_id": number}),
        }
        for agent_id, number in graph.agents.items()
    }
    return {
        "muxrl.version": version,
        "muxrl.algorithm": plan.algorithm,
        "muxrl.server": plan.server_id,
        "muxrl.policy": policy_id,
        "muxrl.agents": json.dumps(agents),
        "muxrl.env_steps": str(checkpoint.env_steps),
        "muxrl.frame_stack": str(plan.frame_stack),
        "muxrl.tolerance": f"{tolerance:g}",
    }
