"""QMIX, VDN, QPLEX and independent Q-learning for teams of agents."""

from muxrl.servers.agents.teams import TeamProblem, TeamSpec, team_reward
from muxrl.servers.algorithms.qmix.qmix import QMIX, QMIXConfig
from muxrl.servers.algorithms.qmix.team_env import TeamEnv

__all__ = ["QMIX", "QMIXConfig", "TeamEnv", "TeamProblem", "TeamSpec", "team_reward"]
