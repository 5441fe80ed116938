"""What a simulation and a policy server say to each other: messages, codec, episode states.

Nothing here does I/O, reads a clock, or imports ray or torch: both sides and every transport
run the same values through the same code. See ``docs/protocol.md``.
"""

PROTOCOL_VERSION = 1
"""Incremented whenever a message changes in a way that an older peer cannot read."""
