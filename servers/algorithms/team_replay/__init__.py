"""What algorithms share that learn for teams from a replay: QMIX and its kin, MASAC, MADDPG.

A team is one RLlib agent, see `muxrl.servers.agents.teams`. Each algorithm adds its networks, its
losses and its replay: of steps or episodes.
"""
