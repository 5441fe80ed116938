"""Lets a long run suffer many faults, and checks what has to hold at its end."""
