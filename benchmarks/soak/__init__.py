"""A long run that is hurt again and again, and what has to hold at its end."""
