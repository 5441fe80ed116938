"""What the page of `muxrl watch` needs for a run of many hours.

    python -m benchmarks.long_page RUN --hours 1 10

Writes, into a folder that is removed again, a run of so many hours: the metrics of RUN over and
over, with time, env steps and counts that go on; its logs once. Then reads it as the page does.

Prints the size of its metrics, the seconds of processor time until the page has read all of them,
how much memory that took, and of one piece of news from then on its processor time and size.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from muxrl.orchestrator.records.metrics import iter_metrics
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.watch.run_view import RunView

_SUMS = ("time_s", "env_steps", "episodes", "cpu_s")
"""Of a record, what goes on from one repetition to the next; of a server in it, all seconds."""
_NUM_NEWS = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="directory of a run with metrics")
    parser.add_argument("--hours", type=float, nargs="+", default=[1.0, 10.0])
    args = parser.parse_args()
    head = ("hours", "metrics MiB", "read in s", "memory MiB", "news ms", "news kB")
    print(("{:>13}" * len(head)).format(*head), flush=True)
    # A process for each, so that none finds memory that another has left.
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as processes:
        for hours in args.hours:
            print(processes.apply(measure, (args.run, hours)), flush=True)
    return 0


def measure(short: Path, hours: float) -> str:
    """Returns the line of a run of so many hours."""
    with tempfile.TemporaryDirectory() as place:
        run = lengthened(RunDirectory.open(short), Path(place) / "run", 3600 * hours)
        size = sum(file.stat().st_size for file in run.metrics.iterdir())
        before = _peak_bytes()
        began = time.process_time()
        view = RunView(run.path)
        while not view.read()["is_whole"]:
            pass
        read_s = time.process_time() - began
        memory = _peak_bytes() - before
        began = time.process_time()
        for _ in range(_NUM_NEWS):
            news = msgspec.json.encode(view.read())
        news_s = (time.process_time() - began) / _NUM_NEWS
    return (
        f"{hours:>13g}{size / 2**20:>13.1f}{read_s:>13.1f}{memory / 2**20:>13.0f}"
        f"{1e3 * news_s:>13.1f}{len(news) / 1e3:>13.0f}"
    )


def lengthened(short: RunDirectory, path: Path, seconds: float) -> RunDirectory:
    """Writes a run of `seconds` that repeats the metrics of a short one."""
    shutil.copytree(
        short.path, path, ignore=shutil.ignore_patterns("metrics", "checkpoints", "tensorboard")
    )
    run = RunDirectory(path)
    run.metrics.mkdir()
    records = list(iter_metrics(short.metrics / "joint.jsonl"))
    first, last = records[0], records[-1]
    num = max(1, round(seconds / (last["time_s"] - first["time_s"])))
    for file in short.metrics.glob("*.jsonl"):
        records = list(iter_metrics(file))
        with (run.metrics / file.name).open("w") as out:
            for i in range(num):
                for record in records:
                    out.write(json.dumps(_later(record, i, last)) + "\n")
    return run


def _later(record: Mapping[str, Any], times: int, last: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a record, as many whole runs later; of servers their own time and seconds, too."""
    later = {**record, **{k: record[k] + times * last[k] for k in _SUMS if k in record}}
    if "servers" in record:
        later["servers"] = {
            server_id: {
                **now,
                **{
                    key: now[key] + times * last["servers"][server_id].get(key, 0.0)
                    for key in ("time_s", "learning_s", "held_s")
                    if key in now
                },
            }
            for server_id, now in record["servers"].items()
        }
    return later


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    sys.exit(main())
