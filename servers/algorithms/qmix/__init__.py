"""QMIX, VDN and independent Q-learning for teams of agents."""

from servers.algorithms.qmix.config import QMIXConfig
from servers.algorithms.qmix.qmix import QMIX
from servers.algorithms.qmix.team import TeamEnv, TeamProblem, TeamSpec, team_reward

__all__ = ["QMIX", "QMIXConfig", "TeamEnv", "TeamProblem", "TeamSpec", "team_reward"]
