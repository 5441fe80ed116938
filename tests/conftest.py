"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

# How long an example takes says how busy the machine is, and nothing of the law that it tries.
settings.register_profile("muxrl", deadline=None)
settings.load_profile("muxrl")
