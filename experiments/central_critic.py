"""What a critic of the global state is worth: MAPPO with and without it, and PPO.

    python -m muxrl.experiments.central_critic --seeds 0 1 2 3 4 \\
        --out experiments/results/central_critic

The cue game in weather that only the state shows (`experiments.simulations.weather_cues`): three
agents on one server, one shared policy, all paid the same. Contestants differ in what the critic
sees, the state or the agents' observations; PPO's sees one agent's own, in RLlib's loss at the same
settings. The rule: every 1,500 of 9,000 env steps 50 evaluation episodes with sampled actions, on
the same seeds for everybody; the figure is an agent's mean return without the weather. Random
acting gets 2.66, the oracle 20, as in the cue game.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from muxrl.client.env_loop import EnvLoop
from muxrl.experiments.simulations.cue_game import oracle_return, random_return
from muxrl.experiments.simulations.weather_cues import WeatherCues
from muxrl.orchestrator.config import load_config
from muxrl.orchestrator.runs.in_process import Served, serve

_COMMON = "train_batch_size_per_learner: 500, lr: 0.003, gamma: 0.9, entropy_coeff: 0.01"
# RLlib's PPO with MAPPO's defaults, as far as it has them; its clip of the value loss, which is in
# units of the reward squared, is out of the way.
_LIKE_MAPPO = (
    "lambda_: 0.95, minibatch_size: null, num_epochs: 10, clip_param: 0.2, use_kl_loss: false, "
    "kl_coeff: 0.0, vf_clip_param: 1.0e6"
)
CONTESTANTS: dict[str, tuple[str, ...]] = {
    "MAPPO": ("algorithm=MAPPO", f"settings={{{_COMMON}}}"),
    "MAPPO without the state": (
        "algorithm=MAPPO",
        "use_global_state=false",
        f"settings={{{_COMMON}}}",
    ),
    "PPO": ("algorithm=PPO", f"settings={{{_COMMON}, {_LIKE_MAPPO}}}"),
}
_NUM_EPISODES = 50


@dataclass(frozen=True)
class Outcome:
    """Mean returns of one run without the weather, by env steps."""

    contestant: str
    seed: int
    returns: dict[int, float]


def run(contestant: str, seed: int, env_steps: int = 9_000, interval: int = 1_500) -> Outcome:
    """Trains one contestant through a server and evaluates it on the way."""
    overrides = [f"servers.team.{line}" for line in CONTESTANTS[contestant]]
    config = load_config("weather_cues", [f"seed={seed}", "servers.team.agents=['*']", *overrides])
    returns: dict[int, float] = {}
    with serve(config) as served, served.client() as client:
        loop = EnvLoop([served.simulation() for _ in range(4)], client)
        while loop.num_env_steps < env_steps:
            goal = loop.num_env_steps + interval
            loop.run(should_stop=lambda goal=goal: loop.num_env_steps >= goal)  # type: ignore[misc]
            served.check()
            returns[loop.num_env_steps] = _mean_return(served)
    return Outcome(contestant, seed, returns)


def _mean_return(served: Served) -> float:
    results = served.evaluate(_NUM_EPISODES, should_explore=True)
    game, without_weather = WeatherCues(), []
    for result in results:
        game.reset(seed=result.seed)
        without_weather.append(fmean(result.returns.values()) - game.weather * result.num_steps)
    return fmean(without_weather)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--contestants", nargs="+", default=list(CONTESTANTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for contestant in args.contestants:
        for seed in args.seeds:
            outcome = run(contestant, seed)
            rows.append(asdict(outcome))
            shown = ", ".join(f"{t}: {value:.2f}" for t, value in outcome.returns.items())
            print(f"{contestant}, seed {seed}: {shown}", flush=True)
            (args.out / "outcomes.json").write_text(json.dumps(rows, indent=1) + "\n")
    print(f"random {random_return():.2f}, oracle {oracle_return():.2f}")


if __name__ == "__main__":
    main()
