"""The gateway: one address for simulations that muxrl does not start."""
