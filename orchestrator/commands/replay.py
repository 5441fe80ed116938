"""``muxrl replay``: show an episode that a run has recorded.

Prints a recorded training episode step by step; simulation.record sets the share of episodes that a
run records.
"""

from __future__ import annotations

import sys
from pathlib import Path

from muxrl.orchestrator.commands.command import command
from muxrl.orchestrator.commands.terminal import quiet
from muxrl.orchestrator.errors import CannotEvaluate, ExitCode


@command(only_prints=True)
def replay(
    run: Path,
    *,
    seed: int | None = None,
    video: Path | None = None,
    minari: str | None = None,
    agent: str | None = None,
) -> int:
    """Shows the episode, and returns the exit code.

    Args:
        run (RUN): a run's directory.
        seed (S): seed of the episode; default: that of the newest one.
        video (FOLDER): play it again and film it (an animated GIF), if the environment renders
            'rgb_array'.
        minari (ID): write all recorded episodes as a Minari dataset, such as chase/prey-v0.
        agent (NAME): the agent whose steps the dataset has.
    """
    if minari:
        return _write_dataset(run, minari, agent)
    with quiet():
        import numpy as np

        from muxrl.orchestrator.evaluations.filming import film, find_episode, recorded_files

        files = recorded_files(run)
        rows, parameters = find_episode(files, seed)
        difference = film(run, rows, parameters, video) if video else ""
    given = "".join(f", {name} {value:g}" for name, value in parameters.items())
    sys.stdout.write(f"seed {rows[0]['seed']}{given}, one of {len(files)} recorded episodes\n")
    if video:
        sys.stdout.write(f"{difference}\n" if difference else f"filmed in {video}\n")
        return ExitCode.FAILED if difference else ExitCode.DONE
    with np.printoptions(precision=3, threshold=8, suppress=True):
        for row in rows:
            ends = "".join(f" {end}" for end in ("terminated", "truncated") if row[end])
            sys.stdout.write(
                f"t={row['t']} {row['agent']} sees {row['observation']}, does {row['action']}, "
                f"earns {row['reward']:g}{ends}\n"
            )
    return ExitCode.DONE


def _write_dataset(run: Path, name: str, agent: str | None) -> int:
    from muxrl.orchestrator.evaluations.filming import recorded_files
    from muxrl.orchestrator.records.minari_dataset import write_dataset

    files, about = recorded_files(run), f"training episodes of {run.resolve().name}"
    try:
        num_episodes = write_dataset(files, name, agent, about)
    except ModuleNotFoundError as error:
        raise CannotEvaluate(f"{error}: pip install 'minari[hdf5]'") from error
    except (OSError, ValueError) as error:
        raise CannotEvaluate(str(error)) from error
    sys.stdout.write(f"{name}: {num_episodes} episodes\n")
    return ExitCode.DONE
