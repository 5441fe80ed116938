"""The algorithms that do not learn, by name; importing the names loads nothing else."""

RANDOM = "RANDOM"
SCRIPTED = "SCRIPTED"
FROZEN = "FROZEN"

FIXED_NAMES = (RANDOM, SCRIPTED, FROZEN)
