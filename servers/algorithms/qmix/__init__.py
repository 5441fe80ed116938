"""QMIX, VDN, QPLEX and independent Q-learning for teams of agents."""
