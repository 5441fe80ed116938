"""What a simulation and a policy server say to each other: messages, codec, episode law.

Nothing here does I/O, reads a clock, or imports ray or torch: both sides and every transport
run the same values through the same code. ``docs/protocol.md`` tells the story.
"""

PROTOCOL_VERSION = 1
"""Raised by one whenever a message changes in a way that an older peer cannot read."""
