"""QMIX, VDN and independent Q-learning for teams of agents."""

from servers.algorithms.qmix.config import QMIXConfig
from servers.algorithms.qmix.qmix import QMIX
from servers.algorithms.qmix.team import TeamProblem, TeamSpec, team_reward
from servers.algorithms.qmix.team_env import TeamEnv

__all__ = ["QMIX", "QMIXConfig", "TeamEnv", "TeamProblem", "TeamSpec", "team_reward"]
