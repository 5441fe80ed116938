"""QMIX, VDN, QPLEX and independent Q-learning for teams of agents."""

from muxrl.servers.agents.seat_actions import TeamProblem
from muxrl.servers.agents.teams import TeamSpec, team_reward
from muxrl.servers.algorithms.qmix.qmix import QMIX, QMIXConfig

__all__ = ["QMIX", "QMIXConfig", "TeamProblem", "TeamSpec", "team_reward"]
