"""What MAPPO's policies see: an agent's own observation, and for its critic the state.

An agent in a group is recorded at every step of its team, even when it does not act or has
departed. Such a step is marked by `ALIVE` 0: it trains the critic, which learns what the team still
earns, but not the actor.
"""

from __future__ import annotations

from muxrl.servers.agents.inputs import AgentId, Alive, Mask, Own, State
from muxrl.servers.agents.keys import AGENT_ID, ALIVE
from muxrl.servers.agents.seating import Seating

CENTRAL = Seating(
    inputs=(Own, Mask, State, AgentId, Alive),
    reward="team",
    is_joint=True,
    read_if=((AGENT_ID, "settings", "obs_agent_id"), (ALIVE, "model", "use_lstm")),
)
"""The agents of a group earn the team's reward and see the team's state; an agent in no group sees
the state of all of the server's agents."""
