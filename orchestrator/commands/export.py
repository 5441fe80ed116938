"""``muxrl export``: write the policies of a run as ONNX files.

Writes an ONNX file for each policy that a run has trained. Compares each file with the policy in
the checkpoint, and deletes it if it acts differently.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from muxrl.orchestrator.commands.command import command
from muxrl.orchestrator.commands.terminal import quiet
from muxrl.orchestrator.errors import CannotExport, ExitCode, NotExported

if TYPE_CHECKING:
    from muxrl.orchestrator.records.run_directory import RunDirectory
    from muxrl.servers.fixed_policies.exported import ExportedPolicy


def _positive(text: str) -> float:
    value = float(text)
    if not 0.0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} must be a positive number")
    return value


@command(says="in a terminal", needs=("servers", "export"))
def export(
    run: Path,
    *,
    server: str | None = None,
    checkpoint: str = "last",
    out: Path | None = None,
    tolerance: Annotated[float, _positive] = 1e-5,
) -> int:
    """Writes the files, prints what is in each, and returns the exit code.

    Args:
        run (RUN): a run's directory.
        server (NAME): export this server's policies; default: those of all servers that learned,
            except shadows.
        checkpoint (NAME): env steps of a checkpoint, such as 80000, or best.
        out (DIR): folder for the files; default: RUN/onnx.
        tolerance (X): how much a file's logits or values may differ from the server's;
            default: 1e-5.

    Raises:
        CannotExport, NotExported: some servers' were not written; all others' were.
    """
    from muxrl.orchestrator.records.run_directory import RunDirectory

    directory = RunDirectory.open(run)
    checkpoints = _find_checkpoints(directory, server, checkpoint)
    folder = out or directory.path / "onnx"
    problems: list[CannotExport | NotExported] = []
    for server_id, path in checkpoints.items():
        try:
            with quiet():
                exported = list(_export(server_id, path, folder / server_id, tolerance))
        except (CannotExport, NotExported) as error:
            problems.append(error)
            continue
        for policy in exported:
            sys.stdout.write(
                f"{policy.path}\n"
                f"  in:  {', '.join(policy.inputs)}\n"
                f"  out: {', '.join(policy.outputs)}\n"
                f"  acts as the server does on {policy.num_verified:,} observations drawn from "
                "their space\n"
            )
    if problems:
        raise type(problems[0])("\n".join(map(str, problems)))
    return ExitCode.DONE


def _find_checkpoints(
    directory: RunDirectory, server_id: str | None, checkpoint: str
) -> dict[str, Path]:
    """Returns the checkpoints of the servers that are asked for.

    Raises:
        CannotExport: there is no such server or checkpoint, or the server does not learn.
    """
    from muxrl.orchestrator.config.shadows import acting
    from muxrl.orchestrator.storage.checkpoints import CheckpointFolder
    from muxrl.protocol.suggestions import similar_or_known
    from muxrl.servers.fixed_names import is_fixed

    try:
        config = directory.read_config()
    except FileNotFoundError as error:
        raise CannotExport(f"run {directory.name!r} has no config.yaml: it never began") from error
    servers = config.servers
    learned = [name for name, server in servers.items() if not is_fixed(server.algorithm)]
    if server_id is not None and server_id not in servers:
        hint = similar_or_known(server_id, servers, "its servers are")
        raise CannotExport(f"run {directory.name!r} has no server {server_id!r}{hint}")
    if server_id is not None and server_id not in learned:
        algorithm = servers[server_id].algorithm
        raise CannotExport(f"server {server_id!r} is {algorithm}, which learns no policy")
    acts = acting(config)
    names = [s for s in learned if s in acts] if server_id is None else [server_id]
    if not names:
        raise CannotExport(f"no server that acts in run {directory.name!r} learns a policy")
    folder = CheckpointFolder(directory.checkpoints)
    found = {}
    for name in names:
        path = folder.of_server(name, checkpoint)
        if path is None:
            raise CannotExport(
                f"run {directory.name!r} has no checkpoint {checkpoint!r} of server {name!r}; "
                f"{folder.saved_text(name)}"
            )
        found[name] = path
    return found


def _export(
    server_id: str, checkpoint: Path, folder: Path, tolerance: float
) -> Iterator[ExportedPolicy]:
    from muxrl.servers.export import network
    from muxrl.servers.export.verify import Differs
    from muxrl.servers.fixed_policies.exported import export_checkpoint
    from muxrl.servers.setting_values import AlgorithmProblem

    try:
        yield from export_checkpoint(checkpoint, folder, tolerance=tolerance)
    except (AlgorithmProblem, network.CannotExport) as error:
        raise CannotExport(f"server {server_id!r}: {error}") from error
    except Differs as error:
        raise NotExported(f"server {server_id!r}: {error}") from error
