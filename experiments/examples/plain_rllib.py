"""QMIX in plain RLlib: no servers, no client; RLlib's own env runner plays the two-step game."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.rllib.env.multi_agent_env import MultiAgentEnv
from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv
from ray.tune.registry import register_env

from muxrl.experiments.simulations.two_step_game import TwoStepGame
from muxrl.protocol.spaces import from_gymnasium
from muxrl.servers.agents.teams import TeamSpec
from muxrl.servers.algorithms.qmix import QMIXConfig
from muxrl.servers.gymnasium_spaces import spaces_of


class Teams(MultiAgentEnv):
    """Makes each group of `env`'s agents one agent of RLlib, as `with_agent_groups` once did.

    Every agent is in a group, acts at every step, and stays until the episode ends for all.
    """

    def __init__(self, env: MultiAgentEnv, groups: Mapping[str, tuple[str, ...]]) -> None:
        self.env = env
        self.specs = {
            team: TeamSpec(
                members,
                {m: from_gymnasium(env.get_observation_space(m)) for m in members},
                {m: from_gymnasium(env.get_action_space(m)) for m in members},
            )
            for team, members in groups.items()
        }
        self.agents = self.possible_agents = list(groups)
        spaces = {team: spaces_of(spec) for team, spec in self.specs.items()}
        self.observation_spaces = {team: observed for team, (observed, _) in spaces.items()}
        self.action_spaces = {team: acted for team, (_, acted) in spaces.items()}
        super().__init__()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        observations, _ = self.env.reset(seed=seed, options=options)
        return self._observe(observations, {}), {}

    def step(self, action_dict: dict[str, Any]) -> Any:
        actions: dict[str, Any] = {}
        for team, joint in action_dict.items():
            actions |= self.specs[team].split(joint, self.specs[team].members)
        observations, rewards, terminateds, truncateds, _ = self.env.step(actions)
        shared = {t: sum(rewards[m] for m in spec.members) for t, spec in self.specs.items()}
        ends = ({"__all__": flags["__all__"]} for flags in (terminateds, truncateds))
        return self._observe(observations, actions), shared, *ends, {}

    def _observe(self, observations: dict[str, Any], last_actions: dict[str, Any]) -> Any:
        return {
            team: spec.observe(observations, last_actions=last_actions)
            for team, spec in self.specs.items()
        }


TEAM = {"team": ("agent_0", "agent_1")}
register_env("two_step", lambda _: Teams(ParallelPettingZooEnv(TwoStepGame()), TEAM))

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
