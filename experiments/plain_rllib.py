"""QMIX in plain RLlib: no servers, no client, RLlib's own env runner plays the two-step game."""

from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv
from ray.tune.registry import register_env

from experiments.simulations.two_step_game import TwoStepGame
from servers.algorithms.qmix import QMIXConfig, TeamEnv

TEAM = {"team": ["agent_0", "agent_1"]}
register_env("two_step", lambda _: TeamEnv(ParallelPettingZooEnv(TwoStepGame()), TEAM))

config = (
    QMIXConfig()
    .environment("two_step")
    .multi_agent(policies={"team"}, policy_mapping_fn=lambda agent_id, *args, **kwargs: "team")
    .training(mixer="qmix", agent="mlp", gamma=1.0, epsilon=1.0, target_update_freq=50)
    .debugging(seed=0, log_sys_usage=False)
)
algo = config.build_algo()
for _ in range(3):
    result = algo.train()
    learned = result["learners"]["team"]
    print(
        f"{result['num_env_steps_sampled_lifetime']:.0f} env steps, "
        f"{learned['num_updates']:.0f} updates, loss {learned['loss']:.3f}"
    )
algo.stop()
