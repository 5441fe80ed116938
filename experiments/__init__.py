"""What ships with muxrl to be run or read: configs, sweeps, simulations, examples and studies."""
