"""Makes up a run for trackers, and reads their files."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.orchestrator.records.recorded import new_run

from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.records.run_status import StatusFile

CONFIG = """
name: tag
seed: 7
simulation:
  kwargs: {num_wolves: 2}
  gateway: {token: nobody-shall-know-this}
servers:
  sheep:
    algorithm: PPO
    token: ???
    settings: {lr: 0.001}
"""
_BLOCK_BYTES = 32 * 1024
_PIECE_HEAD = 7


def tracked_run(root: Path) -> RunDirectory:
    """Returns the directory of a running run that has everything but metrics."""
    run = new_run(root)
    run.write_config(CONFIG)
    StatusFile(run).enter("running", 0)
    return run


def end(run: RunDirectory, env_steps: int = 300) -> None:
    """Makes a run end well, with a report."""
    (run.path / "summary.md").write_text("all went well\n")
    (run.path / "plots" / "learning.png").write_bytes(b"not looked at")
    StatusFile(run).enter("done", env_steps)


def tensorboard_events(path: Path) -> Iterator[Any]:
    """Yields the events of an event file."""
    from tensorboardX.proto.event_pb2 import Event

    content, position = path.read_bytes(), 0
    while position < len(content):  # TFRecord: length, its checksum, event, its checksum
        size = int.from_bytes(content[position : position + 8], "little")
        yield Event.FromString(content[position + 12 : position + 12 + size])
        position += size + 16


def tensorboard_scalars(path: Path) -> dict[tuple[str, int], float]:
    """Returns the numbers of an event file by tag and step."""
    return {
        (value.tag, event.step): value.simple_value
        for event in tensorboard_events(path)
        for value in event.summary.value
    }


def wandb_records(path: Path) -> Iterator[Any]:
    """Yields the records of a ``.wandb`` file: LevelDB's log format, after a head of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, position, whole = path.read_bytes(), 7, b""
    while position + _PIECE_HEAD <= len(content):
        _, size, kind = struct.unpack_from("<IHB", content, position)
        position += _PIECE_HEAD
        whole += content[position : position + size]
        position += size
        if kind in (1, 4):  # a whole record, or the last piece of one
            yield Record.FromString(whole)
            whole = b""
        if _BLOCK_BYTES - position % _BLOCK_BYTES < _PIECE_HEAD:  # no room for another head
            position += _BLOCK_BYTES - position % _BLOCK_BYTES
