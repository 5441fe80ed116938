"""MASAC and MADDPG: an actor that a team's members share, and critics of their joint action.

Each member acts on its own observation; the critics, which see the observations and actions of all
members, are used only to learn (Lowe et al. 2017, arXiv 1706.02275).
"""
