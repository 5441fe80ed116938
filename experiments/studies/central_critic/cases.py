"""What a critic of the global state is worth: MAPPO with and without it, and PPO. See README.md."""

from __future__ import annotations

from statistics import fmean

from muxrl.experiments.simulations.cue_game import oracle_return, random_return
from muxrl.experiments.simulations.weather_cues import WeatherCues
from muxrl.experiments.studies.case_table import Case, CaseTable, main
from muxrl.experiments.studies.outcomes import Figures
from muxrl.orchestrator.launch.in_process import Served

_COMMON = "train_batch_size_per_learner: 500, lr: 0.003, gamma: 0.9, entropy_coeff: 0.01"
# As in the paper; without them, a critic of returns of +-100 takes twice as long.
_NORMALIZED = "normalize_values: true, huber_delta: 10.0, vf_clip_param: 0.2"
# MAPPO's settings, as far as RLlib's PPO has them. PPO's clip of the value loss, in units of the
# squared reward, is so high that it has no effect.
_LIKE_MAPPO = (
    "lambda_: 0.95, minibatch_size: null, num_epochs: 10, clip_param: 0.2, use_kl_loss: false, "
    "kl_coeff: 0.0, vf_clip_param: 1.0e6"
)
_CONTESTANTS: dict[str, tuple[str, ...]] = {
    "MAPPO": ("algorithm=MAPPO", f"settings={{{_COMMON}, {_NORMALIZED}}}"),
    "MAPPO without the state": (
        "algorithm=MAPPO",
        "use_global_state=false",
        f"settings={{{_COMMON}, {_NORMALIZED}}}",
    ),
    "PPO": ("algorithm=PPO", f"settings={{{_COMMON}, {_LIKE_MAPPO}}}"),
}


def return_without_weather(served: Served) -> Figures:
    """Measures 50 sampled episodes, without the weather's part of the mean return."""
    game, returns = WeatherCues(), []
    for result in served.evaluate(50, should_explore=True):
        game.reset(seed=result.seed)
        returns.append(fmean(result.returns.values()) - game.weather * result.num_steps)
    return {"return": fmean(returns)}


TABLE = CaseTable(
    {
        name: Case(
            "weather_cues",
            (
                "simulation.num_envs_per_process=4",
                "servers.team.agents=['*']",
                *(f"servers.team.{line}" for line in lines),
            ),
            env_steps=9_000,
            every=1_500,
            measure=return_without_weather,
            levels={"random": random_return(), "optimum": oracle_return()},
        )
        for name, lines in _CONTESTANTS.items()
    },
    seeds=(0, 1, 2, 3, 4),
    title="Cues in weather: return per agent, 50 sampled episodes every 1,500 env steps",
)

if __name__ == "__main__":
    main(TABLE, __doc__)
