"""QMIX in plain RLlib: no servers, no client; RLlib's own env runner plays the two-step game."""

from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv
from ray.tune.registry import register_env

from muxrl.experiments.simulations.two_step_game import TwoStepGame
from muxrl.servers.algorithms.qmix import QMIXConfig, TeamEnv

TEAM = {"team": ["agent_0", "agent_1"]}
register_env("two_step", lambda _: TeamEnv(ParallelPettingZooEnv(TwoStepGame()), TEAM))

config = (
    QMIXConfig()
    .environment("two_step")
    .multi_agent(policies={"team"}, policy_mapping_fn=lambda agent_id, *args, **kwargs: "team")
    .training(mixer="qmix", agent="mlp", epsilon=1.0, optimizer_name="adam")
    .training(updates_per_episode=0.5, target_update_freq=100)
    .evaluation(
        evaluation_interval=1,
        evaluation_duration=1,
        evaluation_config=QMIXConfig.overrides(explore=False),  # greedy
    )
    .debugging(seed=0, log_sys_usage=False)
)

if __name__ == "__main__":
    algo = config.build_algo()
    for _ in range(5):
        result = algo.train()
        greedy = result["evaluation"]["env_runners"]["episode_return_mean"]
        print(
            f"{result['num_env_steps_sampled_lifetime']:.0f} env steps, "
            f"loss {result['learners']['team']['loss']:.3f}, greedy return {greedy:.0f} of 8"
        )
    algo.stop()
