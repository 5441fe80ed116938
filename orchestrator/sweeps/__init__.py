"""Sweeps: one simulation, many assignments, settings and seeds, on Ray Tune.

    result = start_sweep(load_sweep("experiments/sweeps/chase.yaml"))
    result.frame()

A sweep's YAML (`schema`) is expanded to a table of trials (`plan`), each of which is an experiment
with every name looked up. Tune (`runner`) runs each trial as a whole muxrl run (`trial`), and the
sweep's directory (`directory`) tells at any time how the trials stand.
"""
