"""Names of the parts of an observation, in memory, in checkpoints and in exported files.

An action mask and the global state have the names under which simulations send them.
"""

from __future__ import annotations

from muxrl.protocol.spaces import ACTION_MASK_KEY, STATE_KEY

OBS = "obs"
ACTION_MASK = ACTION_MASK_KEY
STATE = STATE_KEY
AGENT_ID = "agent_id"
ALIVE = "alive"
LAST_ACTION = "last_action"

BINARY_KEYS = frozenset({ACTION_MASK, ALIVE})
"""Parts that hold truth values, which replays store as bytes: with many actions, a mask would take
most of the memory."""

NO_ACTION = -1
"""``last_action`` before a member's first action, and the logged action of a member without one."""
