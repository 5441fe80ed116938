"""RLlib's algorithms, and configs of people's own, as trainers."""
