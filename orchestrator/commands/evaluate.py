"""``muxrl evaluate``: play episodes with the policies of a run, and print the returns.

Loads the policies from the checkpoints of a run, plays episodes with them, and prints the returns.
Nothing is trained.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from muxrl.orchestrator.commands.command import acting_rule, command, pair_of
from muxrl.orchestrator.commands.terminal import quiet


def _number(text: str) -> float:
    return int(text) if text.lstrip("-").isdigit() else float(text)


_PLAYER = pair_of(str, "SERVER=random, SERVER=module:name or SERVER=FOLDER")
_PARAMETER = pair_of(_number, "NAME=NUMBER")


@command(says="always", at_most_one=("explore", "greedy"))
def evaluate(
    run: Path,
    *,
    episodes: int = 100,
    seed: int | None = None,
    explore: bool = False,
    greedy: bool = False,
    checkpoint: str = "last",
    replace: Annotated[dict[str, str] | None, _PLAYER] = None,
    parameter: Annotated[dict[str, float] | None, _PARAMETER] = None,
    record: Path | None = None,
    video: Path | None = None,
) -> None:
    """Plays the episodes and prints the returns.

    Args:
        run (RUN): a run's directory.
        episodes (N): number of episodes.
        seed (S): seed of the first episode; default: evaluation.seed of the run.
        explore: sample the actions of stochastic policies, as in training.
        greedy: take the likeliest action of stochastic policies; default: as in the run's own
            evaluations.
        checkpoint (NAME): env steps of a checkpoint, such as 80000, or best.
        replace (SERVER=WHAT): let WHAT play a server's agents: random, a function as module:name,
            or the folder of a checkpoint.
        parameter (NAME=NUMBER): set this one of simulation.parameters to NUMBER in all episodes.
        record (FILE): write each agent's observations, actions and rewards to FILE: as Parquet if
            its name ends in .parquet, else one JSON object per line.
        video (FOLDER): film each episode (an animated GIF), if the environment renders 'rgb_array'.
    """
    with quiet():
        from muxrl.orchestrator.evaluations.evaluate import evaluate_run
        from muxrl.orchestrator.evaluations.evaluated import print_evaluation

        result = evaluate_run(
            run,
            num_episodes=episodes,
            seed=seed,
            should_explore=acting_rule(explore, greedy),
            checkpoint=checkpoint,
            replace=replace,
            parameters=parameter,
            record=record,
            video=video,
        )
    print_evaluation(result)
    sys.stdout.write(f"written to {result.path}\n")
