"""MASAC and MADDPG: actors of a team's members, and critics of their joint action.

Each member acts on what it observes itself; the critics, which see what all observe and do, exist
only while learning (Lowe et al. 2017, arXiv 1706.02275).
"""
