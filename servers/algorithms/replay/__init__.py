"""Replays in arrays, and the base classes of trainers that learn from one."""
