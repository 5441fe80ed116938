"""Configs, sweeps, simulations, examples and studies that ship with muxrl, to run or to read."""
