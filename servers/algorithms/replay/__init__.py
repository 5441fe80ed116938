"""Replays in arrays, and the loop and the learner of every algorithm that learns from one."""
