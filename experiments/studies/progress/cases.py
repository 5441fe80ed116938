"""simple_tag, PPO against PPO: what snapshots show while the return is flat. See README.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from muxrl import RunResult, compare, exploit, launch
from muxrl.experiments.studies.case_table import Case, CaseTable, evaluated, main
from muxrl.experiments.studies.outcomes import PICTURE_FILE, Figures, Outcome
from muxrl.experiments.studies.pictures import Panel, draw_curves
from muxrl.orchestrator.measure.statistics import Estimate
from muxrl.orchestrator.records.recorded_run import RecordedRun
from muxrl.orchestrator.storage.checkpoints import CheckpointFolder

ROLE = "predators"
ROLES = {ROLE: ["adversary_*"], "prey": ["agent_*"]}
EVERY = 30_000
"""Env steps from one snapshot to the next."""
RESPONSE_ENV_STEPS = 30_000
"""Env steps of a best response's training."""
NUM_EPISODES = 200
"""Episodes in which a best response is compared with the snapshot, on the same seeds."""
_PANELS = {
    "return": "return while learning",
    "rating": "rating, in Elo points above random",
    "gain": "what a best response gains",
}


@dataclass(frozen=True)
class Launched(Case):
    """A run in separate processes, in ``runs``, whose snapshots are measured afterwards."""

    def train(self, seed: int, env_steps: int) -> dict[int, Figures]:
        """Launches the run, and measures its snapshots."""
        launched = launch(self.experiment(seed), {"stop.env_steps": env_steps})
        return measured(_whole(launched).run_dir)


def measured(run: Path) -> dict[int, Figures]:
    """Returns figures of a run's snapshots, by env steps.

    ``rating`` is the predators' rating against the prey of all snapshots, ``prey_rating`` the
    prey's; ``return`` is the predators' return in training since the snapshot before. The first
    and the last snapshot also have ``gain``, the gain of a best response. Ends of 95 % intervals
    are ``rating_low`` and so on.
    """
    played = compare([run], snapshots=True, roles=ROLES).head_to_head
    assert played is not None
    curves = [next(iter(played.rating_curves(table).values())) for table in played.by_label]
    trained = RecordedRun.read(run).training[ROLE]
    snapshots = CheckpointFolder(run / "checkpoints").snapshots(EVERY)
    found: dict[int, Figures] = {}
    for snapshot, (step, rating), (_, of_prey) in zip(snapshots, *curves, strict=True):
        recent = (trained.env_steps > step - EVERY) & (trained.env_steps <= step)
        found[step] = {"return": float(trained.returns[recent].mean()), **_told("rating", rating)}
        found[step] |= _told("prey_rating", of_prey)
        if snapshot in (snapshots[0], snapshots[-1]):
            found[step] |= _told("gain", gain(run, snapshot))
    return found


def gain(run: Path, snapshot: int) -> Estimate:
    """Returns the gain of a best response that begins with the snapshot's weights."""
    own = run.absolute() / "checkpoints" / str(snapshot) / ROLE
    response = exploit(
        run,
        ROLE,
        {
            "servers.best_response.initialize_from": str(own),
            "evaluation.final_num_episodes": NUM_EPISODES,
        },
        env_steps=RESPONSE_ENV_STEPS,
        checkpoint=str(snapshot),
    )
    _whole(response.launched)
    return response.gains[-1].gain


def _whole(launched: RunResult) -> RunResult:
    """Returns the result if its run came to its end.

    Raises:
        RuntimeError: the run did not.
    """
    if launched.outcome != "done":
        raise RuntimeError(launched.problem or f"{launched.run_dir}: {launched.outcome}")
    return launched


def _told(name: str, estimate: Estimate) -> Figures:
    return {name: estimate.mean, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def draw(outcomes: Sequence[Outcome], folder: Path) -> None:
    """Draws a panel for each figure."""
    panels = []
    for name, title in _PANELS.items():
        curves = [
            [(step, figures[name]) for step, figures in outcome.measured.items() if name in figures]
            for outcome in outcomes
        ]
        panels.append(Panel(title, {ROLE: curves}, {}))
    draw_curves(panels, "PPO's predators in simple_tag", folder / PICTURE_FILE)


TABLE = CaseTable(
    {
        "PPO against PPO": Launched(
            str(Path(__file__).with_name("self_play.yaml")),
            (f"checkpoint.keep_every_env_steps={EVERY}",),
            env_steps=120_000,
            every=EVERY,
            measure=evaluated(NUM_EPISODES, should_explore=True),
        )
    },
    seeds=(0, 1),
    draw_own=draw,
)

if __name__ == "__main__":
    main(TABLE, __doc__)
