"""The protocol between a simulation and a policy server: messages, codec, spaces and values.

Nothing here does I/O, reads a clock, or imports ray or torch, so that both sides and every
transport treat values with the same code. See ``docs/protocol.md``.
"""

PROTOCOL_VERSION = 1
"""Incremented with every change of a message that an older peer cannot read."""
